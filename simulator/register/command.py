"""`python -m simulator --register`: random runs of the register alone."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from simulator.register.run import Counts, Run, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

_VIOLATION = 1
_PROGRESS = 50_000


def main(argv: Sequence[str]) -> int:
    """Run many as the arguments say, or show one; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator --register",
        description="Runs the register alone: lost, doubled and late messages, launchers that are "
        "killed and come back with an old disk or none, committees that change.",
        allow_abbrev=False,
    )
    parser.add_argument("--seeds", default="0:1000", metavar="FROM:TO", help="which [0:1000]")
    parser.add_argument("--seed", type=int, help="one run, with every held value and leader")
    options = parser.parse_args(argv)
    first, _, last = options.seeds.partition(":")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        parser.error(f"{options.seeds!r} is not FROM:TO, such as 0:1000")
    return _many(range(int(first), int(last))) if options.seed is None else _one(options.seed)


def _one(seed: int) -> int:
    made: list[Run] = []

    def make(chance: Random, counts: Counts) -> Run:
        made.append(Run(chance, counts))
        return made[0]

    problem = run(seed, make=make)
    print(f"leaders: {', '.join(f'{epoch} from {value}' for epoch, value in made[0].begun)}")
    print(f"held: {', '.join(map(str, made[0].held))}")
    if problem:
        print(f"VIOLATION  {problem}")
    return _VIOLATION if problem else 0


def _many(seeds: range) -> int:
    counts, failed, began = Counts(), 0, time.monotonic()
    for number, seed in enumerate(seeds, 1):
        if problem := run(seed, counts):
            failed += 1
            print(f"seed {seed}: {problem}", flush=True)
        if number % _PROGRESS == 0 and sys.stderr.isatty():
            print(f"\r{number} of {len(seeds)} runs", end="", file=sys.stderr, flush=True)
    print(
        f"runs        {len(seeds)}: {counts.leaders} leaders, {counts.held} values were held, "
        f"{counts.committees} committees\n"
        f"violations  {failed}\n"
        f"took        {time.monotonic() - began:.1f} s"
    )
    return _VIOLATION if failed else 0
