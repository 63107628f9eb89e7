"""`python -m simulator`: jobs of many nodes in virtual time, under faults."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator.arguments import add_arguments, count
from simulator.coordination.faults import KINDS
from simulator.coordination.run import run, vary
from simulator.coordination.summary import Summary
from simulator.coordination.trace import LEGEND, line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulator.coordination.run import Result
    from simulator.coordination.setup import Setup

_VIOLATION = 1
_LAST_LINES = 60
_PROGRESS_S = 1.0
_CHUNK = 8
_FAULTS = 20

_DESCRIPTION = (
    "Run jobs of many nodes in virtual time: the code that decides in `undaunted run`, on a "
    "simulated network, under faults. Checks after every event what must never happen. The same "
    "arguments always give the same run. Exits with 1 if something did happen."
)


def main(argv: Sequence[str]) -> int:
    """Simulate as the arguments after ``python -m simulator`` say; return the exit code."""
    options = _parser().parse_args(argv)
    return _one(options) if options.seeds is None else _many(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulator",
        description=_DESCRIPTION,
        epilog="Two more: --inprocess, jobs whose functions are restarted inside their processes; "
        "--check RUN_DIR, the invariants over journals of a real job. Each has a --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--nodes", type=count(1), default=8, help="nodes a job needs [8]")
    parser.add_argument("--spares", type=count(0), default=2, help="nodes beyond these [2]")
    parser.add_argument(
        "--elastic", action="store_true", help="every job is elastic [three of ten are]"
    )
    add_arguments(parser, KINDS, faults=_FAULTS)
    parser.add_argument(
        "--jobs", type=count(1), default=1, metavar="N", help="processes for many runs [1]"
    )
    return parser


def _setup(options: argparse.Namespace, seed: int) -> Setup:
    return vary(seed, options.nodes, options.spares, elastic=options.elastic)


def _simulate(options: argparse.Namespace, seed: int, trace: Any = None) -> Result:
    setup = _setup(options, seed)
    return run(setup, seed, kinds=options.faults, faults=options.count, trace=trace)


# --- one run --------------------------------------------------------------------------------------


def _one(options: argparse.Namespace) -> int:
    last: deque[str] = deque(maxlen=_LAST_LINES)
    if options.steps:
        print(LEGEND, end="")

    def trace(now: int, name: str, what: Any) -> None:
        if options.steps:
            print(line(now, name, what))
        else:
            last.append(line(now, name, what))

    setup = _setup(options, options.seed)
    started = time.perf_counter()
    result = _simulate(options, options.seed, trace)
    seconds = time.perf_counter() - started
    if result.problem and not options.steps:
        print(LEGEND + "\n".join(last))
    print(f"seed {options.seed}: {setup}")
    for fault in result.faults:
        print(f"  {fault.at_ns / 1e9:8.3f}  {fault}")
    print(
        f"{result.seconds:.1f} s simulated in {seconds:.2f} s: {result.events} events, "
        f"{result.messages} messages, {result.rounds} rounds, {result.takeovers} take-overs"
    )
    why = f"; it was beyond help: {result.hopeless}" if result.hopeless else ""
    print(f"the job ended as {result.ended or 'given up'}{why}")
    if result.problem:
        print(f"VIOLATION  {result.problem}")
        return _VIOLATION
    return 0


# --- many runs ------------------------------------------------------------------------------------


def _many(options: argparse.Namespace) -> int:
    summary = Summary()
    first_failed: int | None = None
    started = shown = time.monotonic()
    for result in _results(options):
        summary.add(result)
        if result.problem:
            print(f"seed {result.seed}: {result.problem}", flush=True)
            first_failed = result.seed if first_failed is None else first_failed
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown >= _PROGRESS_S:
            shown = now
            rate = summary.runs / (now - started)
            print(
                f"\r{summary.runs} of {len(options.seeds)} runs, {rate:.0f}/s, "
                f"{summary.failures} violations ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    if shown != started:
        print(file=sys.stderr)
    print("\n".join(summary.lines()))
    print(f"took        {time.monotonic() - started:.1f} s")
    if first_failed is None:
        return 0
    print(f"every event of the first: {_command(options, first_failed)}")
    return _VIOLATION


def _results(options: argparse.Namespace) -> Iterator[Result]:
    simulate = partial(_simulate, options)
    if options.jobs == 1:
        yield from map(simulate, options.seeds)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(simulate, options.seeds, chunksize=_CHUNK)


def _command(options: argparse.Namespace, seed: int) -> str:
    words = ["python -m simulator", f"--nodes {options.nodes}", f"--spares {options.spares}"]
    if options.elastic:
        words.append("--elastic")
    if options.faults != tuple(KINDS):
        words.append(f"--faults {','.join(options.faults)}")
    if options.count != _FAULTS:
        words.append(f"--count {options.count}")
    return " ".join([*words, f"--seed {seed} --steps"])
