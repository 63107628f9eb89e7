"""How often the right rank is named as slow, and how often a wrong one: see `--help`.

`python -m benchmarks.slow_rank`: rounds of 8 ranks, plain DDP over gloo, in which one rank is 15 %
slower in its own work, and as many in which none is. Each has 200 steps, and knows nothing of the
rounds before.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.__main__ import machine
from undaunted.journal.events import SlowRank
from undaunted.journal.reader import find_journals, read_journal

RANKS, STEPS = 8, 200
PROGRAM = Path(__file__).with_name("workloads") / "slow_rank.py"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_rank", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="with a slow rank, and without (50)")
    parser.add_argument("--each", type=int, default=5, help="rounds of one launcher (5)")
    parser.add_argument("--work", choices=("sleep", "cpu", "matrices"), default="sleep")
    parser.add_argument("--under", default="", help="command that runs each launcher, such as nice")
    args = parser.parse_args()
    print("| 8 ranks, 200 steps | rounds | right rank | another rank | nobody | failed |")
    print("|---|---|---|---|---|---|")
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for first in range(0, 2 * args.rounds, args.each):
        numbers = range(first, min(first + args.each, 2 * args.rounds))
        slow = [number // 2 % RANKS if number % 2 else -1 for number in numbers]
        for rank, found in zip(slow, run(args.work, slow, shlex.split(args.under)), strict=True):
            counts[rank >= 0][found] += 1
            print(f"{rank}: {found}", file=sys.stderr, flush=True)
    for is_slow, name in ((True, "one 15 % slower"), (False, "none slower")):
        figures = [str(counts[is_slow][key]) for key in ("right", "wrong", "nobody", "failed")]
        print(f"| {args.work}, {name} | {args.rounds} | {' | '.join(figures)} |")
    print(machine())
    return 0


def run(work: str, slow: list[int], under: list[str]) -> list[str]:
    """Run one round for each of these; say of each who was named: right, wrong, nobody, failed."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--nproc-per-node", str(RANKS), "--max-restarts", str(len(slow) - 1)]
        launcher = [sys.executable, "-m", "undaunted", "run", *options, "--run-dir", folder]
        program = [str(PROGRAM), work, ",".join(map(str, slow)), str(STEPS)]
        ended = subprocess.run([*under, *launcher, *program], capture_output=True, check=False)
        events = [event for path in find_journals(folder) for event in read_journal(path).events]
    if ended.returncode:
        return ["failed"] * len(slow)
    found = []
    for number, rank in enumerate(slow):
        named = {each.rank for each in events if isinstance(each, SlowRank) if each.round == number}
        found.append("nobody" if not named else "right" if named == {rank} else "wrong")
    return found


if __name__ == "__main__":
    sys.exit(main())
