"""`python -m simulator --inprocess`: jobs that are restarted inside their processes."""

from __future__ import annotations

import argparse
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from simulator.arguments import add_arguments, count
from simulator.inprocess.faults import KINDS
from simulator.inprocess.run import run
from simulator.inprocess.setup import vary

if TYPE_CHECKING:
    from collections.abc import Sequence

_VIOLATION = 1
_LAST_LINES = 60
_LINE = 240

_DESCRIPTION = (
    "Run jobs whose functions are restarted inside their processes, in virtual time: the code that "
    "decides in undaunted.inprocess, on a simulated network, under faults. Exits with 1 if "
    "something happens that must never happen."
)


def main(argv: Sequence[str]) -> int:
    """Simulate as the arguments after ``python -m simulator --inprocess`` say."""
    options = _parser().parse_args(argv)
    return _one(options) if options.seeds is None else _many(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m simulator --inprocess", description=_DESCRIPTION
    )
    parser.add_argument("--ranks", type=count(1), default=4, help="processes of the job [4]")
    add_arguments(parser, KINDS, faults=10)
    return parser


def _one(options: argparse.Namespace) -> int:
    last: deque[str] = deque(maxlen=_LAST_LINES)

    def trace(now: int, name: str, what: Any) -> None:
        line = f"{now / 1e9:12.6f}  {name:<6}  {what}"[:_LINE]
        if options.steps:
            print(line)
        else:
            last.append(line)

    setup = vary(options.seed, options.ranks)
    result = run(setup, options.seed, kinds=options.faults, faults=options.count, trace=trace)
    if result.problem and not options.steps:
        print("\n".join(last))
    print(f"seed {options.seed}: {setup}")
    for fault in result.faults:
        print(f"  {fault.at_ns / 1e9:8.3f}  {fault}")
    ends = ", ".join(f"{times} {how}" for how, times in sorted(result.ends.items()))
    print(f"{result.seconds:.1f} s simulated: {result.events} events, {result.epochs} epochs")
    print(f"calls of ranks ended: {ends or '-'}")
    if result.problem:
        print(f"VIOLATION  {result.problem}")
        return _VIOLATION
    return 0


def _many(options: argparse.Namespace) -> int:
    started = time.monotonic()
    ends: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    for seed in options.seeds:
        setup = vary(seed, options.ranks)
        result = run(setup, seed, kinds=options.faults, faults=options.count)
        ends.update(result.ends)
        totals.update(faults=len(result.faults), epochs=result.epochs, moves=result.takeovers)
        totals.update(events=result.events)
        if result.problem:
            print(f"seed {seed}: {result.problem}", flush=True)
            failed.append(seed)
    print(
        f"runs        {len(options.seeds)}: {totals['faults']} faults, {totals['epochs']} epochs, "
        f"{totals['moves']} take-overs, {totals['events']} events"
    )
    how = ", ".join(f"{times} {how}" for how, times in ends.most_common())
    print(f"calls ended {how or '-'}")
    print(f"violations  {len(failed)}")
    print(f"took        {time.monotonic() - started:.1f} s")
    if not failed:
        return 0
    command = f"python -m simulator --inprocess --ranks {options.ranks} --count {options.count}"
    if options.faults != tuple(KINDS):
        command += f" --faults {','.join(options.faults)}"
    print(f"every event of the first: {command} --seed {failed[0]} --steps")
    return _VIOLATION
