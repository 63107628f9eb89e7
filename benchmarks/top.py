"""What `undaunted top` costs: its own CPU time, and that of the launcher it looks at.

    python benchmarks/top.py [--ranks 8] [--seconds 30] [--megabytes 100]

A job whose ranks step every 50 ms runs alone for a while, then beside the screen in a terminal.
Then a journal of so many megabytes is read for one snapshot.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import resource
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.journal import events as e
from undaunted.journal.lines import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = """
import threading, undaunted
pause = threading.Event()
for step in range(1_000_000):
    undaunted.step(step)
    with undaunted.section("forward"):
        pause.wait(0.05)
"""
UNDAUNTED = (sys.executable, "-m", "undaunted.cli.main")
START_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        beside_a_job(Path(directory), options.ranks, options.seconds)
        long_journal(Path(directory), options.megabytes)


def beside_a_job(directory: Path, ranks: int, seconds: float) -> None:
    """Print what screen and launcher use while a job runs."""
    with job(directory, ranks) as agent:
        print(f"launcher of {ranks} ranks alone: {percent(used(agent, seconds), seconds)}")
        with screen(directory / "run") as top:
            began = cpu_s(top)
            beside = used(agent, seconds)
            print(f"launcher beside top:       {percent(beside, seconds)}")
            print(f"top:                       {percent(cpu_s(top) - began, seconds)}")


def long_journal(directory: Path, megabytes: int) -> None:
    """Print what a snapshot of a long journal takes."""
    run = directory / "long"
    run.mkdir()
    with (run / "journal-n.jsonl").open("wb") as journal:
        journal.write(encode(e.JournalOpened(t=1, pid=1)))
        while journal.tell() < megabytes * 1_000_000:
            t = journal.tell()
            journal.write(
                encode(e.RankEvent(t=t, rank=0, name="checkpoint", at_ns=t, text="x" * 80))
            )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*UNDAUNTED, "top", str(run), "--once"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"a snapshot of {megabytes} MB:       {cpu:.2f} s of CPU time")


@contextlib.contextmanager
def job(directory: Path, ranks: int) -> Iterator[int]:
    """Run a job that steps; yield the pid of its agent."""
    (directory / "train.py").write_text(SCRIPT)
    options = ("--nproc-per-node", str(ranks), "--run-dir", "run")
    command = [*UNDAUNTED, "run", *options, "train.py"]
    with subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL) as launcher:
        try:
            wait_for_steps(directory / "run", ranks)
            children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
            yield int(children.split()[0])
        finally:
            launcher.terminate()


def wait_for_steps(run: Path, ranks: int) -> None:
    """Wait until all ranks have stepped."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        journals = [path.read_text() for path in run.glob("journal-*.jsonl")]
        if sum(text.count('"first_step"') for text in journals) >= ranks:
            return
        time.sleep(0.2)
    raise SystemExit("the job did not start")


@contextlib.contextmanager
def screen(run: Path) -> Iterator[int]:
    """Show a run in a terminal of which somebody reads; yield the pid once it shows something."""
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [*UNDAUNTED, "top", str(run)],
        stdin=inner,
        stdout=inner,
        env={**os.environ, "TERM": "xterm"},
    ) as top:
        os.close(inner)
        select.select([outer], [], [], START_S)
        reader = threading.Thread(target=read_all, args=(outer,))
        reader.start()
        try:
            yield top.pid
        finally:
            os.write(outer, b"q")
            top.wait(START_S)
            reader.join()
            os.close(outer)


def read_all(fd: int) -> None:
    """Read until the terminal is closed at its other end."""
    with contextlib.suppress(OSError):
        while os.read(fd, 65536):
            pass


def used(pid: int, seconds: float) -> float:
    """Return the CPU time that a process uses in the next ``seconds``."""
    began = cpu_s(pid)
    time.sleep(seconds)
    return cpu_s(pid) - began


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def percent(cpu: float, seconds: float) -> str:
    """Return a CPU time as part of a core."""
    return f"{100 * cpu / seconds:.2f} % of a core"


if __name__ == "__main__":
    main()
