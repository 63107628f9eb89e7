"""How soon a script of a framework trains again after a crash: see `--help`.

`.venv-integrations/lightning/bin/python -m benchmarks.first_step --framework lightning`: two ranks
over gloo, under `undaunted run` without any flag and under torchrun. Rank 1 is killed again and
again; what is measured is the time until both ranks have made a step, and until they are behind
their imports. Under `undaunted run` the first ranks train until the template has learned.
`both` imports both; `scripts/integration-env.sh .venv both` makes its environment.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.__main__ import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    "transformers": ROOT / "tests/integrations/transformers/train.py",
    "lightning": ROOT / "tests/integrations/lightning/train.py",
    "both": ROOT / "benchmarks/workloads/both_frameworks.py",
}
OPTIONS = ["--nproc-per-node", "2", "--max-restarts", "100"]
COMMANDS = {
    "undaunted": ["-m", "undaunted", "run", "--run-dir", "run", *OPTIONS],
    "torchrun": ["-m", "torch.distributed.run", *OPTIONS],
}
MARK = "BENCHMARK_JOB"
LEARNS_S, RESTART_S = 1800.0, 60.0  # the import has the lowest priority
_LINES_BETWEEN = 40  # of both ranks: more steps than lie between two checkpoints


class Times(NamedTuple):
    """From the kill on, seconds; of the last of both ranks."""

    imported: float
    stepped: float


class Job:
    """A job under a launcher. Lines of its ranks come with the time when they were read."""

    def __init__(self, launcher: str, framework: str, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            MARK: self.mark,
        }
        script = [str(SCRIPTS[framework]), str(folder / "job"), "steps=1000000"]
        (folder / "job").mkdir()
        self._process = subprocess.Popen(
            [sys.executable, *COMMANDS[launcher], *script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.last: deque[str] = deque(maxlen=60)
        self._lines: queue.Queue[tuple[float, str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put((time.monotonic(), line))
            self.last.append(line)
        self._lines.put((time.monotonic(), ""))

    def until_step(self, began: float, limit_s: float) -> Times | None:
        """When both ranks were behind their imports, and had made a step; None = never."""
        imported: dict[str, float] = {}
        steps: dict[str, int] = {}
        while len(imported) < 2 or len(steps) < 2 or min(steps.values()) < 2:
            try:
                at, line = self._lines.get(timeout=began + limit_s - time.monotonic())
            except (queue.Empty, ValueError):
                return None
            if not line:
                return None
            if at < began:
                continue
            if found := re.search(r"rank (\d) (goes on|step)", line):
                rank, what = found.groups()
                if what == "goes on":
                    imported[rank], steps[rank] = at - began, 0
                elif rank in steps:
                    steps[rank] += 1
        return Times(max(imported.values()), time.monotonic() - began)

    def has_learned(self) -> dict[str, object] | None:
        """Wait until the launcher says what its ranks need not import; None = it does not."""
        deadline = time.monotonic() + LEARNS_S
        while time.monotonic() < deadline:
            self._lines.get(timeout=LEARNS_S)  # one at each step
            if learned := self._events("imports_learned"):
                return learned[-1]
        return None

    def kill(self, rank: int) -> float:
        """Have the job get on, as one is given up that does not; kill this rank; return when."""
        for _ in range(_LINES_BETWEEN):
            self._lines.get(timeout=RESTART_S)
        spawned = self._events("workers_spawned")
        pids: dict[int, int] = dict(enumerate(spawned[-1]["pids"]) if spawned else self._ranks())
        os.kill(pids[rank], signal.SIGKILL)
        return time.monotonic()

    def _events(self, kind: str) -> list[dict[str, Any]]:
        """What the journal of undaunted says."""
        lines = (path.read_text() for path in self.folder.glob("run/journal-*.jsonl"))
        events = (json.loads(line) for text in lines for line in text.splitlines() if kind in line)
        return [event for event in events if event["event"] == kind]

    def _ranks(self) -> Iterator[tuple[int, int]]:
        """Ranks and processes of torchrun: they have the environment that it gave them."""
        for folder in Path("/proc").iterdir():
            try:
                words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            said = dict(word.split("=", 1) for word in words if "=" in word)
            if said.get(MARK) == self.mark and "RANK" in said:
                yield int(said["RANK"]), int(folder.name)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(10)


def restarts(launcher: str, framework: str, number: int) -> tuple[list[Times], int, str]:
    """Times of so many restarts, how many came to nothing, and what was learned before."""
    times: list[Times] = []
    failed, learned = 0, ""
    while len(times) + failed < number:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(launcher, framework, Path(folder))
            try:
                if job.until_step(time.monotonic(), LEARNS_S) is None:
                    failed += 1
                    print(f"{launcher} does not begin:\n{''.join(job.last)}", file=sys.stderr)
                    continue
                if launcher == "undaunted":
                    event = job.has_learned()
                    assert event is not None, "nothing was learned"
                    learned = json.dumps(event)
                while len(times) + failed < number:
                    took = job.until_step(job.kill(1), RESTART_S)
                    if took is None:
                        failed += 1
                        print(f"{launcher} failed:\n{''.join(job.last)}", file=sys.stderr)
                        break  # with this job
                    times.append(took)
                    print(f"{launcher}: {took}", file=sys.stderr, flush=True)
            finally:
                job.close()
    return times, failed, learned


def cell(values: list[float], failed: int) -> str:
    if not values:
        return f"none of {failed}"
    about = f"{statistics.median(values):.3f} [{min(values):.3f}..{max(values):.3f}]"
    return f"{about} n={len(values)}, {failed} failed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_step", description=__doc__)
    parser.add_argument("--framework", choices=SCRIPTS, required=True)
    parser.add_argument("--restarts", type=int, default=9, help="of each launcher (9)")
    parser.add_argument("--only", choices=COMMANDS, help="this launcher alone")
    args = parser.parse_args()
    launchers = [args.only] if args.only else list(COMMANDS)
    found = {name: restarts(name, args.framework, args.restarts) for name in launchers}
    print(*(learned for *_, learned in found.values() if learned))
    print(f"| {args.framework}, 2 ranks: SIGKILL to | {' | '.join(launchers)} | ratio |")
    print("|---" * (len(launchers) + 2) + "|")
    for index, what in enumerate(("both behind their imports", "both have made a step")):
        columns = [([each[index] for each in times], failed) for times, failed, _ in found.values()]
        ratio = "-"
        if len(columns) == 2 and all(values for values, _ in columns):
            ours, theirs = (statistics.median(values) for values, _ in columns)
            ratio = f"{theirs / ours:.1f}"
        print(f"| {what} | {' | '.join(cell(*column) for column in columns)} | {ratio} |")
    print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
