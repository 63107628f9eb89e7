"""How long ranks that are blocked in a collective of gloo take to be at work again.

    python benchmarks/abort.py [--ranks 2 4 8 16] [--rounds 15] [--scenario all_reduce]

All ranks but one are blocked; all abort at the same moment. Shown are milliseconds from there until
the slowest rank is out of the collective, has aborted and destroyed its groups, and has the right
sum of the first all-reduce of a new group: median and longest of the rounds. Scenarios are those
of tests/inprocess/communication/job.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "inprocess" / "communication" / "job.py"
STEPS = {"unblocked": "out of the collective", "aborted": "aborted", "again": "first sum"}


def measure(scenario: str, ranks: int, rounds: int) -> dict[str, list[float]]:
    """Return, by step, how many milliseconds the slowest rank took in each round."""
    request = {"scenario": scenario, "ranks": ranks, "rounds": rounds, "limit": 300}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        input=json.dumps(request) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "FATAL"},
        timeout=600,
        check=True,
    )
    said = json.loads(done.stdout)["ranks"]
    if errors := [rank["error"] for rank in said if "error" in rank]:
        raise SystemExit(errors[0])
    return {
        step: [max(rank["rounds"][at][step] for rank in said) * 1000 for at in range(rounds)]
        for step in STEPS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scenario", default="all_reduce")
    arguments = parser.parse_args()
    print("ranks  " + "  ".join(f"{title:>22}" for title in STEPS.values()))
    for ranks in arguments.ranks:
        times = measure(arguments.scenario, ranks, arguments.rounds)
        cells = (f"{statistics.median(one):.0f} (max. {max(one):.0f})" for one in times.values())
        print(f"{ranks:5}  " + "  ".join(f"{cell:>22}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
