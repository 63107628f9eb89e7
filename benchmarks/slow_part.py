"""Where in a step a rank is slow: `python -m benchmarks.slow_part`.

4 ranks, steps of 100 ms. One rank takes 30 ms longer in one part of each step, for each part once;
then runs without a slow rank. It shows who was named within how many steps, and the place.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.__main__ import machine
from undaunted.journal.events import SlowRank
from undaunted.journal.reader import find_journals, read_journal

RANKS = 4
PARTS = ("data", "forward", "backward", "clipping", "optimizer", "logging")
PROGRAM = Path(__file__).with_name("workloads") / "slow_part.py"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_part", description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of each run (400)")
    parser.add_argument("--quiet", type=int, default=10, help="runs without a slow rank (10)")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    print("| 30 ms more in | named | costs | said to be in |\n|---|---|---|---|", flush=True)
    for number, part in enumerate(args.parts):
        slow = number % RANKS
        for event in run(part, slow, args.steps):
            right = "right rank" if event.rank == slow else "another rank"
            places = [each for each in event.beside if each.startswith("line ") or "coll" in each]
            said = "; ".join(f"`{each}`" for each in places)
            print(f"| {part} | {right} | {event.lost:.0%} | {said} |", flush=True)
    named = sum(bool(run("none", -1, args.steps)) for _ in range(args.quiet))
    print(f"\nwithout a slow rank: one named in {named} of {args.quiet} runs\n{machine()}")
    return 0


def run(part: str, slow: int, steps: int) -> list[SlowRank]:
    """Run once; return who was named."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--nproc-per-node", str(RANKS), "--run-dir", folder]
        launcher = [sys.executable, "-m", "undaunted", "run", *options]
        program = [str(PROGRAM), part, str(slow), str(steps)]
        subprocess.run([*launcher, *program], capture_output=True, check=True)
        events = [event for path in find_journals(folder) for event in read_journal(path).events]
    return [event for event in events if isinstance(event, SlowRank) and not event.over]


if __name__ == "__main__":
    sys.exit(main())
