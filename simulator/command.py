"""`python -m simulator`: jobs in virtual time, under faults, one of them or many."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from simulator.coordination import run as of_nodes
from simulator.coordination.faults import ETCD_KINDS as FAULTS_OF_ETCD
from simulator.coordination.faults import KINDS as FAULTS_OF_NODES
from simulator.coordination.trace import LEGEND, line
from simulator.inprocess import run as of_ranks
from simulator.inprocess.faults import KINDS as FAULTS_OF_RANKS
from simulator.inprocess.setup import vary
from simulator.run import collect_seldom
from undaunted.base import values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from simulator.run import Result, Trace

_VIOLATION = 1
_LAST_LINES = 60
_PROGRESS_S = 1.0
_CHUNK = 8
_SEEDS_NAMED = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of jobs.

    Attributes:
        command: the words that ask for it.
        description: what is run.
        sizes: options that say how large a job is: least value, default and meaning of each.
        faults: kinds of faults, with what they do.
        etcd: further ones where etcd decides who leads.
        count: how many faults there are in a run unless the options say so.
        setup: makes the job of a seed.
        run: simulates it.
        rounds: what its rounds are called.
        ended: what ends.
        line: an event as text.
        legend: of these lines.
    """

    command: str
    description: str
    sizes: dict[str, tuple[int, int, str]]
    faults: Mapping[str, str]
    count: int
    setup: Callable[[argparse.Namespace, int], Any]
    run: Callable[..., Result]
    rounds: str
    ended: str
    line: Callable[[int, str, Any], str]
    legend: str = ""
    etcd: Mapping[str, str] = field(default_factory=dict)


JOBS = {
    "coordination": Kind(
        command="python -m simulator",
        description="Run jobs of many nodes in virtual time: the code that decides in `undaunted "
        "run`, on a simulated network, under faults. Checks after every event what must never "
        "happen. The same arguments always give the same run. Exits with 1 if it did happen.",
        sizes={
            "nodes": (1, 8, "nodes a job needs"),
            "spares": (0, 2, "nodes beyond these"),
        },
        faults=FAULTS_OF_NODES,
        count=20,
        setup=lambda options, seed: of_nodes.vary(
            seed,
            options.nodes,
            options.spares,
            elastic=options.elastic,
            min_healthy=options.min_healthy,
            etcd=options.etcd,
            restart_intensity=options.restart_intensity,
        ),
        run=of_nodes.run,
        rounds="rounds",
        ended="jobs",
        line=line,
        legend=LEGEND,
        etcd=FAULTS_OF_ETCD,
    ),
    "inprocess": Kind(
        command="python -m simulator --inprocess",
        description="Run jobs whose functions are restarted inside their processes, in virtual "
        "time: the code that decides in undaunted.inprocess, on a simulated network, under faults. "
        "Exits with 1 if something happens that must never happen.",
        sizes={"ranks": (1, 4, "processes of the job")},
        faults=FAULTS_OF_RANKS,
        count=10,
        setup=lambda options, seed: vary(seed, options.ranks),
        run=of_ranks.run,
        rounds="epochs",
        ended="calls",
        line=of_ranks.line,
    ),
}


def main(name: str, argv: Sequence[str]) -> int:
    """Simulate jobs of one of `JOBS` as the arguments say; return the exit code."""
    kind = JOBS[name]
    options = _parser(kind).parse_args(argv)
    options.faults = options.faults or _all_faults(kind, options)
    return _one(name, options) if options.seeds is None else _many(name, options)


def _all_faults(kind: Kind, options: argparse.Namespace) -> tuple[str, ...]:
    return (*kind.faults, *(kind.etcd if getattr(options, "etcd", False) else ()))


def _simulate(
    name: str, options: argparse.Namespace, seed: int, trace: Trace | None = None
) -> Result:
    kind = JOBS[name]
    setup = kind.setup(options, seed)
    return kind.run(setup, seed, kinds=options.faults, faults=options.count, trace=trace)


# --- arguments ------------------------------------------------------------------------------------


def _parser(kind: Kind) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=kind.command,
        description=kind.description,
        epilog="python -m simulator runs jobs of many nodes; with --inprocess, jobs whose "
        "functions are restarted inside their processes; with --register, the register alone that "
        "says who leads; with --check RUN_DIR, it looks for what "
        "must never happen in the journals of a real job; with --replay FILE, it repeats what "
        "state machines of a real job have done. Each has a --help.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    for size, (least, default, meaning) in kind.sizes.items():
        add(f"--{size}", type=_count(least), default=default, help=f"{meaning} [{default}]")
    if kind is JOBS["coordination"]:
        add("--elastic", action="store_true", help="every job is elastic [three of ten are]")
        add("--min-healthy", action="store_true", help="every job goes on with healthy nodes")
        add("--etcd", action="store_true", help="in every job etcd says who leads [in none]")
        add("--restart-intensity", type=_intensity, metavar="N/TIME", help="of every job [none]")
    add("--seed", type=_count(0), default=0, help="of the one run [0]")
    add("--seeds", type=_span, metavar="FROM:TO", help="many runs: seeds FROM to TO - 1")
    add(
        "--faults",
        type=_kinds_of({**kind.faults, **kind.etcd}),
        metavar="KIND,...",
        help="which faults happen [all]: "
        + "; ".join(f"{name}: {what}" for name, what in kind.faults.items())
        + "".join(f"; with --etcd, {name}: {what}" for name, what in kind.etcd.items()),
    )
    add("--count", type=_count(0), default=kind.count, help=f"how many faults [{kind.count}]")
    add("--steps", action="store_true", help="print every event of the one run")
    add("--jobs", type=_count(1), default=1, metavar="N", help="processes for many runs [1]")
    return parser


def _count(least: int) -> Callable[[str], int]:
    """Convert a whole number from ``least``."""

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return convert


def _intensity(text: str) -> tuple[int, float]:
    try:
        return values.intensity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _span(text: str) -> range:
    """Convert ``FROM:TO``."""
    first, _, last = text.partition(":")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, such as 0:1000")
    if int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} names no seed; TO must be larger than FROM")
    return range(int(first), int(last))


def _kinds_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Convert kinds of faults, separated by commas."""

    def convert(text: str) -> tuple[str, ...]:
        kinds = tuple(word.strip() for word in text.split(",") if word.strip())
        unknown = [kind for kind in kinds if kind not in known]
        if unknown or not kinds:
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
        return kinds

    return convert


def _again(kind: Kind, options: argparse.Namespace, seed: int) -> str:
    """Return the command that shows every event of a run."""
    words = [kind.command, *(f"--{size} {getattr(options, size)}" for size in kind.sizes)]
    words += [
        f"--{switch.replace('_', '-')}"
        for switch in ("elastic", "min_healthy", "etcd")
        if getattr(options, switch, False)
    ]
    if limit := getattr(options, "restart_intensity", None):
        words.append(f"--restart-intensity {limit[0]}/{limit[1]:g}")
    if options.faults != _all_faults(kind, options):
        words.append(f"--faults {','.join(options.faults)}")
    if options.count != kind.count:
        words.append(f"--count {options.count}")
    return " ".join([*words, f"--seed {seed} --steps"])


# --- one run --------------------------------------------------------------------------------------


def _one(name: str, options: argparse.Namespace) -> int:
    kind = JOBS[name]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    if options.steps:
        print(kind.legend, end="")

    def trace(now: int, who: str, what: Any) -> None:
        text = kind.line(now, who, what)
        if options.steps:
            print(text)
        else:
            last.append(text)

    started = time.perf_counter()
    result = _simulate(name, options, options.seed, trace)
    seconds = time.perf_counter() - started
    if result.problem and not options.steps:
        print(kind.legend + "\n".join(last))
    print(f"seed {options.seed}: {kind.setup(options, options.seed)}")
    for fault in result.faults:
        print(f"  {fault.at_ns / 1e9:8.3f}  {fault}")
    print(
        f"{result.seconds:.1f} s simulated in {seconds:.2f} s: {result.events} events, "
        f"{result.messages} messages, {result.rounds} {kind.rounds}, {result.takeovers} take-overs"
    )
    why = f": {result.hopeless}" if result.hopeless else ""
    print(f"{kind.ended} ended: {_listed(result.ends)}{why}")
    if result.problem:
        print(f"VIOLATION  {result.problem}")
        return _VIOLATION
    return 0


def _listed(ends: Mapping[str, int]) -> str:
    ordered = sorted(ends.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {how}" for how, count in ordered) or "-"


# --- many runs ------------------------------------------------------------------------------------


def _many(name: str, options: argparse.Namespace) -> int:
    kind = JOBS[name]
    summary = Summary(kind.rounds, kind.ended)
    started = shown = time.monotonic()
    for result in _results(name, options):
        summary.add(result)
        if result.problem:
            print(f"seed {result.seed}: {result.problem}", flush=True)
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown >= _PROGRESS_S:
            shown = now
            rate = summary.runs / (now - started)
            done = f"{summary.runs} of {len(options.seeds)} runs, {rate:.0f}/s, "
            print(f"\r{done}{summary.failures} violations ", end="", file=sys.stderr, flush=True)
    if shown != started:
        print(file=sys.stderr)
    print("\n".join(summary.lines()))
    print(f"took        {time.monotonic() - started:.1f} s")
    if summary.first_failed is None:
        return 0
    print(f"every event of the first: {_again(kind, options, summary.first_failed)}")
    return _VIOLATION


def _results(name: str, options: argparse.Namespace) -> Iterator[Result]:
    simulate = partial(_simulate, name, options)
    if options.jobs == 1:
        yield from map(simulate, options.seeds)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(
        options.jobs, mp_context=get_context("spawn"), initializer=collect_seldom
    ) as pool:
        yield from pool.map(simulate, options.seeds, chunksize=_CHUNK)


@dataclass(slots=True)
class Summary:
    """Sums over runs; `add` each of them.

    Attributes:
        rounds: what the rounds of these jobs are called.
        ended: what ends.
        runs: how many.
        first_failed: the first seed for which an invariant does not hold, None = there is none.
    """

    rounds: str
    ended: str
    runs: int = 0
    first_failed: int | None = None
    _failed: dict[str, list[int]] = field(default_factory=dict)  # seeds, by invariant
    _sums: Counter[str] = field(default_factory=Counter)
    _seconds: float = 0.0
    _lost_s: list[float] = field(default_factory=list)
    _ends: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        """Take in a run."""
        self.runs += 1
        if result.problem:
            self._failed.setdefault(result.problem.partition(":")[0], []).append(result.seed)
            if self.first_failed is None:
                self.first_failed = result.seed
        self._sums.update(
            faults=len(result.faults),
            rounds=result.rounds,
            takeovers=result.takeovers,
            events=result.events,
        )
        self._seconds += result.seconds
        if result.lost_s is not None:
            self._lost_s.append(result.lost_s)
        self._ends.update(result.ends)

    @property
    def failures(self) -> int:
        """Runs for which an invariant does not hold."""
        return sum(len(seeds) for seeds in self._failed.values())

    def lines(self) -> list[str]:
        """The summary, for people."""
        sums = self._sums
        what = f"{sums['faults']} faults, {sums['rounds']} {self.rounds}, "
        what += f"{sums['takeovers']} take-overs"
        lost = f"; of a job, half lost up to {median(self._lost_s):.1f} s" if self._lost_s else ""
        lines = [
            f"runs        {self.runs}: {what}, {sums['events']} events",
            f"time        {self._seconds / 3600:.1f} h simulated{lost}",
            f"{self.ended} ended".ljust(12) + _listed(self._ends),
            f"violations  {self.failures}",
        ]
        for invariant, seeds in sorted(self._failed.items(), key=lambda item: -len(item[1])):
            named = ", ".join(map(str, seeds[:_SEEDS_NAMED]))
            more = ", ..." if len(seeds) > _SEEDS_NAMED else ""
            lines.append(f"  {invariant}: {len(seeds)} (seeds {named}{more})")
        return lines
