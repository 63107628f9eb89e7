"""What `undaunted ctl stacks` costs a running job, and how soon it answers.

    python -m benchmarks.ctl [--ranks 8] [--dumps 20] [--action stacks] [--alone] [--json]

All ranks but one take steps: 20 ms of sleep, and an all-reduce over gloo among those that step, so
that they have Flight Recorders to look at, and the slowest one delays all; with ``--alone`` no
all-reduce, and no torch. The last rank holds the interpreter's lock in C. Between two dumps lies as
long a time without one, so that what the machine does to steps is seen beside it. The time of a
dump is that of the whole command.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from undaunted.base.process import module_command

DEADLINE_S = 120.0
PAUSE_S = 1.0
PROGRAM = """
    import ctypes, os, pathlib, sys, time
    import undaunted

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "alone" not in sys.argv:
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        group, tensor = dist.new_group(list(range(ranks - 1))), torch.zeros(1000)
    undaunted.step(0)
    pathlib.Path(f"ready-{rank}").touch()
    if rank == ranks - 1:
        ctypes.PyDLL(None).usleep(1_000_000_000)  # of PyDLL, calls keep the interpreter's lock
    ends, number = [], 0
    while not pathlib.Path("stop").exists():
        number += 1
        time.sleep(0.02)
        if "alone" not in sys.argv:
            dist.all_reduce(tensor, group=group)
        undaunted.step(number)
        ends.append(time.monotonic_ns())
    pathlib.Path(f"ends-{rank}").write_text("\\n".join(map(str, ends)))
    pathlib.Path(f"done-{rank}").touch()
    time.sleep(1000)
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--dumps", type=int, default=20)
    parser.add_argument("--action", choices=("stacks", "flight", "status"), default="stacks")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        found = measure(place, options.ranks, options.dumps, options.action, alone=options.alone)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(f"{name:<28}{value}" for name, value in found.items()))
    return 0


def measure(place: Path, ranks: int, dumps: int, action: str, *, alone: bool) -> dict[str, object]:
    """Run a job, ask it, and return what that took."""
    (place / "train.py").write_text(textwrap.dedent(PROGRAM))
    command = [*module_command("undaunted.cli.main"), "run", "--nproc-per-node", str(ranks)]
    command += ["--run-dir", "run", "train.py", *(["alone"] if alone else [])]
    job = subprocess.Popen(
        command,
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(place, "ready-", ranks)
        time.sleep(PAUSE_S)
        asked, quiet = [], []
        for _ in range(dumps):
            quiet.append(passed(PAUSE_S))
            asked.append(ask(place, action, ranks))
        (place / "stop").touch()
        wait_for(place, "done-", ranks - 1)
    finally:
        job.send_signal(signal.SIGINT)
        job.wait(30)
    return figures(place, ranks, asked, quiet)


def wait_for(place: Path, prefix: str, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(list(place.glob(f"{prefix}*"))) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"no {prefix} of all ranks within {DEADLINE_S:g} s")
        time.sleep(0.1)


def passed(seconds: float) -> tuple[int, int]:
    began = time.monotonic_ns()
    time.sleep(seconds)
    return began, time.monotonic_ns()


def ask(place: Path, action: str, ranks: int) -> tuple[int, int]:
    """Run the command; return when."""
    began = time.monotonic_ns()
    command = [*module_command("undaunted.cli.main"), "ctl", "run", action]
    told = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout
    ended = time.monotonic_ns()
    if action == "stacks":
        seen = re.findall(r"^--- rank (\d+), .*\n(?:Current t|T)hread 0x", told, re.MULTILINE)
        if [int(rank) for rank in seen] != list(range(ranks)):
            raise SystemExit(f"stacks of ranks {seen} only:\n{told}")
    return began, ended


def figures(
    place: Path, ranks: int, asked: list[tuple[int, int]], quiet: list[tuple[int, int]]
) -> dict[str, object]:
    steps = []
    for rank in range(ranks - 1):
        ends = [int(line) for line in (place / f"ends-{rank}").read_text().split()]
        steps.append(list(itertools.pairwise(ends)))
    usual = statistics.median((end - begin) / 1e6 for each in steps for begin, end in each)
    took = [(end - begin) / 1e9 for begin, end in asked]
    during = [longest(steps, window) for window in asked]
    between = [longest(steps, window) for window in quiet]
    return {
        "ranks": ranks,
        "dumps": len(asked),
        "command, median s": round(statistics.median(took), 3),
        "command, longest s": round(max(took), 3),
        "step, median ms": round(usual, 1),
        "longest step in a dump, ms": round(max(during), 1),
        "the same, median of dumps": round(statistics.median(during), 1),
        "longest step between, ms": round(max(between), 1),
        "the same, median": round(statistics.median(between), 1),
        "load": round(os.getloadavg()[0], 1),
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
    }


def longest(steps: list[list[tuple[int, int]]], window: tuple[int, int]) -> float:
    """Return the longest step of any rank that overlaps, in ms."""
    first, last = window
    found = [end - begin for each in steps for begin, end in each if end > first and begin < last]
    return max(found) / 1e6


if __name__ == "__main__":
    sys.exit(main())
