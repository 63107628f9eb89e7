"""Let real processes fail at random and restart: `python -m benchmarks.inprocess_soak`.

Job after job, drawn from a seed; every line of the ranks is checked. The first deviation ends it:
its seed and the tail of the lines are printed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from statistics import quantiles
from typing import TYPE_CHECKING

from benchmarks.__main__ import machine
from benchmarks.inprocess_soak import scenarios
from benchmarks.inprocess_soak.checks import DeviationError
from benchmarks.inprocess_soak.job import Job, Outcome, Restart, Settings
from undaunted.base.process import become_subreaper

if TYPE_CHECKING:
    from collections.abc import Iterable

FAULTS = 1000
PER_JOB = 25  # restarts
SEED = 1
# What a rank may have grown by after a job, KiB; torch loads something with the first fault.
GROWTH_KB = 32 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inprocess_soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"until so many ({FAULTS})")
    parser.add_argument("--per-job", type=int, default=PER_JOB, help=f"restarts ({PER_JOB})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the first job ({SEED})")
    parser.add_argument("--ranks", type=int, help="of every job (2 to 6)")
    parser.add_argument("--for", type=float, dest="seconds", help="stop after so many seconds")
    args = parser.parse_args()
    become_subreaper()
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    seed = args.seed
    while _faults(outcomes) < args.faults:
        if args.seconds is not None and time.monotonic() > begin + args.seconds:
            break
        outcome = run(seed, args.per_job, args.ranks)
        if outcome is None:
            return 1
        outcomes.append(outcome)
        seed += 1
        print(f"seed {seed - 1}: {_faults(outcomes)} faults so far", file=sys.stderr, flush=True)
    restarts = [restart for outcome in outcomes for restart in outcome.restarts]
    print(table(restarts))
    growths = [kb for outcome in outcomes for kb in outcome.growth_kb]
    print(
        f"\n{_faults(outcomes)} faults in {len(outcomes)} jobs (seeds {args.seed} to {seed - 1}), "
        f"{sum(one.iterations for one in outcomes)} iterations, "
        f"{sum(one.replaced for one in outcomes)} ranks replaced, "
        f"{time.monotonic() - begin:.0f} s; "
        f"growth of a rank's memory at most {max(growths, default=0) / 1024:.0f} MiB"
    )
    print(machine())
    return 0


def run(seed: int, restarts: int, ranks: int | None) -> Outcome | None:
    """Run the job of a seed; None = something was not as it must be, and is printed."""
    rng = random.Random(seed)
    settings = draw_settings(rng, ranks)
    with Job(settings) as job:
        try:
            return _play(rng, job, restarts)
        except DeviationError as error:
            print(f"seed {seed}, {settings}: {error}\n{job.tail()}", flush=True)
            return None


def draw_settings(rng: random.Random, ranks: int | None) -> Settings:
    """Draw a job."""
    size = ranks or rng.randint(2, 6)
    has_reserves = size > 2 and rng.random() < 0.4
    return Settings(
        ranks=size,
        most_active=rng.randint(2, size - 1) if has_reserves else None,
        gloo=rng.random() < 0.5,
        short=rng.random() < 0.2,
        launched=rng.random() < 0.25,
    )


def table(restarts: Iterable[Restart]) -> str:
    """Return one line per kind: milliseconds from the first fault until all are in again."""
    by_kind: dict[str, list[Restart]] = defaultdict(list)
    for restart in restarts:
        if restart.faults:
            by_kind[restart.kind].append(restart)
    lines = ["| what happens | times | entered: p50 | p99 | max. | ready: p50 | max. |"]
    lines.append("|---" * 7 + "|")
    for kind in sorted(by_kind, key=list(scenarios.KINDS).index):
        entered = sorted(one.entered_s * 1000 for one in by_kind[kind])
        ready = sorted(one.ready_s * 1000 for one in by_kind[kind])
        cells = [_quantile(entered, 50), _quantile(entered, 99), entered[-1]]
        cells += [_quantile(ready, 50), ready[-1]]
        figures = " | ".join(f"{value:.0f}" for value in cells)
        lines.append(f"| {kind} | {len(entered)} | {figures} |")
    return "\n".join(lines)


def _play(rng: random.Random, job: Job, restarts: int) -> Outcome:
    outcome = Outcome()
    scene = job.begin()
    for _ in range(restarts):
        scene, restart = job.play(scenarios.draw(rng, scene))
        outcome.restarts.append(restart)
    outcome.growth_kb = job.finish(scenarios.end(scene))
    outcome.iterations = job.iterations
    outcome.replaced = job.watch.replaced
    if max(outcome.growth_kb) > GROWTH_KB:
        raise DeviationError(f"memory has grown by {outcome.growth_kb} KiB")
    return outcome


def _faults(outcomes: Iterable[Outcome]) -> int:
    return sum(restart.faults for outcome in outcomes for restart in outcome.restarts)


def _quantile(values: list[float], percent: int) -> float:
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    sys.exit(main())
