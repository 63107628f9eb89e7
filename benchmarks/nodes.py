"""How long a job on several hosts takes to run again after a crash: `python -m benchmarks.nodes`.

The hosts are network namespaces of this machine (see tests/netns/hosts.py), which need root: 4 of
them with 2 ranks each, and a spare. The last rank kills itself or raises, in turns; in the end the
agent of a node is killed, so that the spare takes its place. Ranks take their own times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.__main__ import machine
from benchmarks.table import cell
from tests.netns.hosts import Hosts, why_not
from tests.netns.job import Job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NODES = "abcd"
SPARE = "e"
RANKS = 2
JOBS = 3
RESTARTS = 12  # per job
DEADLINE_S = 120.0

# What a rank is told to do comes through a pipe with a name, of which nobody else reads.
SCRIPT = """
    import os, threading, time
    import torch
    number, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["RANK"])
    def say(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece
    say("first line", number, rank, time.monotonic_ns())
    import undaunted
    undaunted.step(int(number))  # without progress there would be pauses
    if rank == int(os.environ["WORLD_SIZE"]) - 1:
        os.mkfifo("new")
        os.rename("new", "order-" + number)
        say("listening", number)
        order = open("order-" + number).read()
        say("dying", number, time.monotonic_ns())
        if order == "kill":
            os.kill(os.getpid(), 9)
        raise ValueError("as it was told to")
    threading.Event().wait()
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"one after the other ({JOBS})")
    args = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    seconds: dict[str, list[float]] = {}
    for _ in range(args.jobs):
        with tempfile.TemporaryDirectory() as folder:
            for how, measured in measure(Path(folder), RESTARTS).items():
                seconds.setdefault(how, []).extend(measured)
    print(show(seconds))
    print(machine())
    return 0


def measure(folder: Path, restarts: int) -> dict[str, list[float]]:
    """Crash so often; return seconds until all ranks are at their first line, by what happened."""
    hosts = Hosts(NODES + SPARE)
    job = Job(
        hosts,
        folder,
        f"{len(NODES)}:{len(NODES) + 1}",
        *("--nproc-per-node", str(RANKS), "--worker-start", "warm"),
        *("--max-restarts", str(restarts + 1), "--ft-max-no-progress-cycles", "0"),
        script=SCRIPT,
    )
    seconds: dict[str, list[float]] = {}
    try:
        job.start()  # with the same chance for all, the last name is that of the spare
        for number in range(restarts):
            how = "kill" if number % 2 == 0 else "raise"
            last = job[NODES[-1]]
            last.wait_for(f"listening {number}$", DEADLINE_S)
            first_lines(job, number, NODES)
            (folder / f"order-{number}").write_text(how)
            died = int(last.wait_for(rf"dying {number} (\d+)", DEADLINE_S)[1])
            title = "SIGKILL of a rank" if how == "kill" else "exception of a rank"
            lines = first_lines(job, number + 1, NODES)
            seconds.setdefault(title, []).append((max(lines) - died) / 1e9)
        lost_ns = time.monotonic_ns()
        job[NODES[1]].lose_power()
        lines = first_lines(job, restarts + 1, NODES.replace(NODES[1], SPARE))
        seconds["a node lost, a spare takes its place"] = [(max(lines) - lost_ns) / 1e9]
    finally:
        job.close()
        hosts.close()
    return seconds


def first_lines(job: Job, number: int, names: str) -> list[int]:
    """Wait for the first lines of all ranks of a round, node by node; return their times, in ns."""
    lines = [
        job[name].wait_for(rf"first line {number} {group_rank * RANKS + each} (\d+)", DEADLINE_S)
        for group_rank, name in enumerate(names)
        for each in range(RANKS)
    ]
    return [int(line[1]) for line in lines]


def show(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return a markdown table."""
    head = f"{len(NODES)} nodes, {RANKS} ranks each, import torch"
    lines = [f"| {head} | first line of all ranks, s |", "|---|---|"]
    return "\n".join([*lines, *(f"| {how} | {cell(one)} |" for how, one in seconds.items())])


if __name__ == "__main__":
    sys.exit(main())
