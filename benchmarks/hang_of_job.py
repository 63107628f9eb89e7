"""How soon a job of two nodes says which rank hangs: `python -m benchmarks.hang_of_job`.

Both launchers run on this machine, with 4 ranks each. In each round a rank hangs while the others
wait in all_reduce of gloo. Measured is the time from the moment at which the first limit has passed
to the one verdict of the job, on the node that hears of it last; and whether that names the rank.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from tests.e2e.launcher import nodes_of_a_job

NODES = ("one", "two")
CULPRIT = 5
DEADLINE_S = 600.0
SCRIPT = """
    import ctypes, os, signal, time
    import torch, torch.distributed as dist
    import undaunted
    LIBC, MUTEX = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    def stuck():
        {hang}
    dist.init_process_group("gloo")
    for step in range(1000):
        undaunted.step(step)
        if step == 5 and dist.get_rank() == {culprit}:
            stuck()
        dist.all_reduce(torch.ones(1))
"""
FAULTS = {
    "sleeps in its own code": "time.sleep(600)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
    "holds the interpreter lock": "LIBC.pthread_mutex_lock(MUTEX), LIBC.pthread_mutex_lock(MUTEX)",
    "blocks all signals": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(600)"
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hang_of_job", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="hangs of each kind (5)")
    args = parser.parse_args()
    print("| 8 ranks on 2 nodes, one | worst, s | all, s | rank named |\n|---|---|---|---|")
    for fault, hang in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), hang, args.rounds)
        took = sorted(seconds for seconds, _ in found)
        named = sum(right for _, right in found)
        all_of_them = ", ".join(f"{seconds:.2f}" for seconds in took)
        print(f"| {fault} | {took[-1]:.2f} | {all_of_them} | {named} of {len(found)} |", flush=True)
    print(machine())
    return 0


def measure(folder: Path, hang: str, rounds: int) -> list[tuple[float, bool]]:
    """Return how long each verdict took, in seconds, and whether it was right."""
    options = ("--nnodes", "2", "--nproc-per-node", "4", "--max-restarts", str(rounds - 1))
    options += ("--ft-rank-heartbeat-timeout", "3", "--ft-max-no-progress-cycles", "0")
    script = SCRIPT.format(hang=hang, culprit=CULPRIT)
    with nodes_of_a_job(folder, script, *options) as start:
        launchers = [start("one", "is_host=1"), start("two", "is_host=0")]
        for each in launchers:
            each.finish(DEADLINE_S)
    journals = [events(folder / "run" / f"journal-{node}.jsonl") for node in NODES]
    return [one for number in range(rounds) for one in verdicts(journals, number)]


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def verdicts(journals: list[list[dict[str, Any]]], number: int) -> list[tuple[float, bool]]:
    """Return the one of a round, unless the round had none: then it is said."""
    of_round = [
        [event for event in journal if event.get("round") == number] for journal in journals
    ]
    everything = [event for journal in of_round for event in journal]
    since = [e["since_ns"] for e in everything if e["event"] == "failure_detected"]
    blamed = [e for e in everything if e["event"] == "round_blamed"]
    if not since or len(blamed) != len(NODES):
        print(f"round {number} has {len(blamed)} verdicts", file=sys.stderr)
        return []
    right = all(e.get("ranks") == [CULPRIT] for e in blamed)
    return [((max(e["t"] for e in blamed) - min(since)) / 1e9, right)]


if __name__ == "__main__":
    sys.exit(main())
