"""Runs a real launcher in a process of its own and waits for what it prints, with deadlines."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.ports import free_ports
from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DEADLINE_S = 60.0


class Launcher:
    """One ``undaunted run``. Standard output and standard error arrive as lines in `seen`.

    ``enter`` is a command that runs another one somewhere else.
    """

    def __init__(
        self,
        args: list[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        *,
        enter: tuple[str, ...] = (),
        command: str = "run",
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "UNDAUNTED"))}
        self.run_dir = cwd / "run"
        self.seen: list[str] = []
        self._ended = False
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [*enter, sys.executable, "-m", "undaunted.cli.main", command, *args],
            cwd=cwd,
            env={**inherited, "OMP_NUM_THREADS": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return "\n".join(self.seen)

    @property
    def agent_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def wait_for(self, pattern: str, timeout_s: float = DEADLINE_S) -> re.Match[str]:
        """The next line (or one seen already) that matches ``pattern``."""
        for line in self.seen:
            if found := re.search(pattern, line):
                return found
        return self.wait_for_next(pattern, timeout_s)

    def wait_for_next(self, pattern: str, timeout_s: float = DEADLINE_S) -> re.Match[str]:
        deadline = time.monotonic() + timeout_s
        while (line := self._next_line(deadline)) is not None:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line matches {pattern!r}; seen:\n{self.text}")

    def finish(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + timeout_s
        while self._next_line(deadline) is not None:
            pass
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def events(self, kind: str | None = None) -> list[dict[str, object]]:
        """Events of the journal."""
        (path,) = self.run_dir.glob("journal-*.jsonl")
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [event for event in found if kind in (None, event["event"])]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.5)
            self.process.send_signal(signal.SIGINT)  # a second one, and not the first one twice
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _next_line(self, deadline: float) -> str | None:
        if self._ended:
            return None
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"nothing within the deadline; seen:\n{self.text}") from None
        if line is None:
            self._ended = True
        else:
            self.seen.append(line)
        return line

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


def explained(run_dir: Path) -> dict[str, Any]:
    """What `undaunted explain` concludes."""
    command = [sys.executable, "-m", "undaunted.cli.main", "explain", "--json", str(run_dir)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    said: dict[str, Any] = json.loads(done.stdout)["conclusion"]
    return said


@contextlib.contextmanager
def launched(
    tmp_path: Path, script: str, *options: str, args: tuple[str, ...] = (), **env: str
) -> Iterator[Launcher]:
    """Write ``script`` to train.py and run it; ends the launcher whatever happens."""
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    spared = ("--worker-start", "fresh") if spares_torch(script) else ()
    command = ["--run-dir", "run", *spared, *options, "train.py", *args]
    launcher = Launcher(command, tmp_path, env)
    try:
        yield launcher
    finally:
        launcher.close()


def spares_torch(script: str) -> bool:
    """Whether a template would import torch for ranks that do without: 2 s of CPU for each job.

    It cannot know that these parts of undaunted need no torch.
    """
    imports = re.findall(r"(?:from|import) (undaunted\.\w+)", script)
    without = {"undaunted.training", "undaunted.fault_tolerance"}
    return bool(imports) and "torch" not in script and without.issuperset(imports)


@contextlib.contextmanager
def nodes_of_a_job(
    tmp_path: Path, script: str, *options: str, args: tuple[str, ...] = ()
) -> Iterator[Callable[..., Launcher]]:
    """Write ``script`` to train.py; gives ``start(node, rdzv_conf, *options)`` for its launchers.

    Without a name ("") a launcher finds one. All of them are ended whatever happens.
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    endpoint = f"127.0.0.1:{free_ports(2)}"
    how = "warm" if "import torch" in script else "fresh"  # one import for each node, not each rank
    common = ["--rdzv-endpoint", endpoint, "--run-dir", "run", "--worker-start", how, *options]
    with contextlib.ExitStack() as opened:

        def start(name: str, conf: str, *own: str, **env: str) -> Launcher:
            named = ["--node-name", name] if name else []
            words = [*common, *named, "--rdzv-conf", conf, *own, "train.py", *args]
            launcher = Launcher(words, tmp_path, {"UNDAUNTED_TOKEN": "a token of the tests"} | env)
            opened.callback(launcher.close)
            return launcher

        yield start


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int], timeout_s: float) -> list[int]:
    """Wait for the end of these processes; return those still alive after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    for pid in pids:
        if (pidfd := process.open_pidfd(pid)) is not None:
            process.wait_pidfd(pidfd, max(0.0, deadline - time.monotonic()))
            os.close(pidfd)
    return [pid for pid in pids if alive(pid)]
