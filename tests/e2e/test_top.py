"""The live screen in a terminal, beside real jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launcher import launched
from tests.journal import sample
from undaunted.base import process
from undaunted.journal.lines import encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

DEADLINE_S = 60.0
LEAVE = "\x1b[?25h\x1b[?1049l"
CONTENT = b"".join(map(encode, sample.RUN))


class Terminal:
    """``undaunted top`` in a terminal of its own; what it writes is kept."""

    def __init__(
        self, run_dir: Path, *, columns: int = 160, lines: int = 30, command: tuple[str, ...] = ()
    ) -> None:
        self.written = ""
        self.outer, inner = pty.openpty()
        self.inner = os.dup(inner)  # stays open, to see how the terminal was left
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.inner)
        args = [str(run_dir), "--interval", "0.2"]
        self.process = subprocess.Popen(
            [
                *("setsid", "--ctty"),  # so that Ctrl-C and Ctrl-Z mean something
                *(command or (sys.executable, "-m", "undaunted.cli.main", "top", *args)),
            ],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(inner)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, size)

    @property
    def lines(self) -> list[str]:
        """The lines of the newest whole screen, without styles."""
        screens = re.findall(r"\x1b\[H(?!\x1b\[H)(.*?)\x1b\[J", self.written, re.DOTALL)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screens[-1]) if screens else ""
        return [line.rstrip("\r") for line in text.split("\n")]

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until a line of the screen matches."""

        def found() -> re.Match[str] | None:
            matches = (re.search(pattern, line) for line in self.lines)
            return next(filter(None, matches), None)

        self._read_until(lambda: found() is not None, pattern)
        match = found()
        assert match is not None
        return match

    def wait_for_text(self, text: str) -> None:
        """Wait until this was written, after what was read so far."""
        start = len(self.written)
        self._read_until(lambda: text in self.written[start:], text)

    def press(self, keys: str) -> None:
        os.write(self.outer, keys.encode())

    def finish(self) -> int:
        """Read to the end; return the exit code."""
        pidfd = process.open_pidfd(self.process.pid)
        if pidfd is not None:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            deadline = time.monotonic() + DEADLINE_S
            while not poll.poll(100) and time.monotonic() < deadline:
                self._read(0.0)
            os.close(pidfd)
        self._read(0.0)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
        os.close(self.outer)
        os.close(self.inner)

    def _read_until(self, done, what: str) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{what!r} was not shown; the screen:\n" + "\n".join(self.lines)
            self._read(left_s)

    def _read(self, timeout_s: float) -> None:
        while select.select([self.outer], [], [], timeout_s)[0]:
            self.written += os.read(self.outer, 65536).decode()
            timeout_s = 0.0


@contextlib.contextmanager
def top(run_dir: Path, **options: Any) -> Iterator[Terminal]:
    terminal = Terminal(run_dir, **options)
    try:
        yield terminal
    finally:
        terminal.close()


def make_run(directory: Path, content: bytes = CONTENT) -> Path:
    directory.mkdir(mode=0o700)
    (directory / "journal-n0.jsonl").write_bytes(content)
    return directory


def left_as_it_was(terminal: Terminal) -> bool:
    return termios.tcgetattr(terminal.inner) == terminal.before and LEAVE in terminal.written


HANG = """
    import os, threading, undaunted
    pause = threading.Event()
    rank, first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(10_000):
        undaunted.step(step)
        if first and rank == "1" and step == 20:
            with undaunted.section("data"):
                pause.wait(600)
        if not first and os.path.exists("stop"):
            break
        pause.wait(0.05)
"""


def test_a_hang_shows_the_suspect_before_the_verdict(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "2", "--ft-rank-heartbeat-timeout", "12")
    with launched(tmp_path, HANG, *options) as launcher:
        launcher.wait_for("2 ranks of train.py")
        with top(launcher.run_dir) as terminal:
            terminal.wait_for(r"^ +1 .* suspect: still in 'data' for .*, the other goes on")
            assert launcher.events("verdict") == []
            assert not any("suspect" in line for line in terminal.lines if line.startswith("   0"))
            terminal.wait_for(r"round 1 is running")
            assert terminal.wait_for(r"restarts (\d) of 2").group(1) == "1"
            terminal.wait_for(r"rank 1 .* hangs: no heartbeat for 1\d")
            terminal.wait_for(r"^ +1 .* 1 *$")  # it has failed once
            (tmp_path / "stop").touch()
            terminal.wait_for(r"finished, exit code 0")
            terminal.wait_for(r"^ +0 +exit 0")
            assert launcher.finish() == 0
            terminal.press("q")
            assert terminal.finish() == 0
            assert left_as_it_was(terminal)


def test_a_launcher_that_is_killed_and_a_new_launch(tmp_path: Path) -> None:
    script = """
        import threading, undaunted
        for step in range(100_000):
            undaunted.step(step)
            threading.Event().wait(0.05)
    """
    with launched(tmp_path, script, "--nproc-per-node", "2", "--max-restarts", "7") as launcher:
        launcher.wait_for("2 ranks of train.py")
        with top(launcher.run_dir) as terminal:
            terminal.wait_for(r"^ +1 +stepping .* [1-9]\d* +\d+ ms")
            os.kill(launcher.agent_pid, signal.SIGKILL)
            terminal.wait_for("killed: the launcher is gone")
            launcher.finish()
            with launched(tmp_path, script, "--nproc-per-node", "1") as again:
                again.wait_for("1 rank of train.py")
                terminal.wait_for(r"round 0 is running")
                terminal.wait_for(r"iteration [1-9]\d* +1 rank ")
            terminal.press("q")
            assert terminal.finish() == 0


def test_keys_and_sizes(tmp_path: Path) -> None:
    with top(make_run(tmp_path / "r"), columns=60, lines=12) as terminal:
        terminal.wait_for("sort: automatic")
        terminal.press("s")
        terminal.wait_for("sort: rank")
        terminal.press("p")
        terminal.wait_for("paused at")
        terminal.press("p\x1b[B\x1b[6~\x1b[5~")
        terminal.wait_for("p pause")
        terminal.resize(100, 40)
        terminal._read_until(lambda: len(terminal.lines) == 40, "40 lines")
        terminal.resize(1, 1)
        terminal._read_until(lambda: len(terminal.lines) == 4, "the least")
        terminal.press("q")
        assert terminal.finish() == 0
        assert left_as_it_was(terminal)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_leave_the_terminal_as_it_was(tmp_path: Path, number: int, code: int) -> None:
    with top(make_run(tmp_path / "r")) as terminal:
        terminal.wait_for("sort: automatic")
        terminal.process.send_signal(number)
        assert terminal.finish() == code
        assert left_as_it_was(terminal)
        assert "Traceback" not in terminal.written


def test_stopped_and_continued_by_a_shell(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    with top(run, command=("bash", "--norc", "--noprofile", "-i")) as terminal:
        terminal.press(f"{sys.executable} -m undaunted.cli.main top {run}\n")
        terminal.wait_for("sort: automatic")
        terminal.press("\x1a")  # Ctrl-Z
        terminal.wait_for_text("Stopped")
        assert LEAVE in terminal.written
        terminal.press("fg\n")
        terminal.wait_for_text("sort: automatic")
        terminal.press("p")
        terminal.wait_for("paused at")
        terminal.press("\x03")  # Ctrl-C
        terminal.wait_for_text(LEAVE)
        terminal.press("exit $?\n")
        assert terminal.finish() == 0


def test_journals_that_are_damaged_grow_and_vanish(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", b"\xff garbage\n" * 3)
    with top(run) as terminal:
        terminal.wait_for("3 lines of the journals could not be read")
        with (run / "journal-n0.jsonl").open("ab") as journal:
            journal.write(CONTENT)
        terminal.wait_for("demo: finished, exit code 0")
        os.truncate(run / "journal-n0.jsonl", 5)
        shutil.rmtree(run)
        terminal.wait_for("No such file or directory")
        terminal.wait_for("demo: finished, exit code 0")
        terminal.press("q")
        assert terminal.finish() == 0


def test_a_terminal_that_goes_away(tmp_path: Path) -> None:
    terminal = Terminal(make_run(tmp_path / "r"))
    terminal.wait_for("sort: automatic")
    os.close(terminal.inner)
    os.close(terminal.outer)
    try:
        assert terminal.process.wait(DEADLINE_S) in (0, 129)
    finally:
        terminal.process.kill()
        terminal.process.wait(DEADLINE_S)


INPROCESS = """
    import os, pathlib, threading, undaunted
    from undaunted import inprocess
    pause = threading.Event()

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper):
        for step in range(100_000):
            undaunted.step(step)
            if call.iteration == 0 and os.environ["RANK"] == "1" and os.path.exists("fail"):
                raise ValueError("a fault")
            if call.iteration == 1 and os.path.exists("stop"):
                return
            pause.wait(0.05)

    train()
"""


def test_restarts_inside_the_processes(tmp_path: Path) -> None:
    with launched(tmp_path, INPROCESS, "--nproc-per-node", "2") as launcher:
        launcher.wait_for("2 ranks of train.py")
        with top(launcher.run_dir) as terminal:
            terminal.wait_for(r"^ +1 +stepping .* [1-9]\d* +\d+ ms")
            (tmp_path / "fail").touch()
            terminal.wait_for(r"restarts 0 of 0   in-process 1")
            terminal.wait_for(r"in-process restart 1: .*a fault")
            terminal.wait_for(r"in-process restart 1: .*running again after")
            terminal.wait_for(r"round 0 is running")
            (tmp_path / "stop").touch()
            terminal.wait_for(r"finished, exit code 0")
            assert launcher.finish() == 0
