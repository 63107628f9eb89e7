"""From the journals of all nodes to what the job was and where its rank-time went. Pure functions.

Definitions:

* *Goodput* is the productive part of the rank-time of all seats, from the start of each launcher to
  its end.
* *ETTR*, the effective training time ratio, is productive time by the wall time of the job, time
  between two attempts included (Kokolis et al., "Revisiting Reliability in Large-Scale Machine
  Learning Research Clusters", 2024). Time in the scheduler's queue before the first launcher is not
  in a journal and not counted. Productive time is that of the mean rank.
* *MTTF*, the mean time to failure, is the time rounds ran, each from its start to its failure or
  end, by the number of failures.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.checkpoints import Checkpoints, Told, checkpoints, joined, told_of
from undaunted.journal.job.books import Books, keep_books
from undaunted.journal.job.cost import Price, cost_of
from undaunted.journal.job.launches import Attempt, Launch, attempts_of, launches_of
from undaunted.journal.job.notes import notes_of
from undaunted.journal.job.rounds import job_round, lost_steps
from undaunted.journal.job.values import Clock, Failures, JobRound, JobSummary
from undaunted.journal.outcome import job_outcome
from undaunted.journal.restarts import RunSummary, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from undaunted.journal.events import JournalOpened
    from undaunted.journal.job.clocks import Place
    from undaunted.journal.reader import Journal


def summarize_job(
    journals: Iterable[Journal],
    *,
    price: Price | None = None,
    is_running: Callable[[JournalOpened], bool | None] | None = None,
) -> JobSummary:
    """Return what a job was, from the journals of its nodes.

    Args:
        journals: of all nodes; those of one directory are taken for one job.
        price: of a rank for an hour, None = costs are not told.
        is_running: tells whether a launcher still runs, None = that is not known.
    """
    launches = launches_of(journals)
    attempts, places = attempts_of(launches)
    books = keep_books(launches, attempts)
    told = [told_of(launch.events) for launch in launches]
    runs = [
        summarize(
            launch.events,
            running=is_running(launch.opened) if is_running and launch.opened else None,
            spent=books.accounts[launch.index],
            told=told[launch.index],
        )
        for launch in launches
    ]
    rounds = _rounds(attempts, books, runs)
    clocks = _clocks(launches, places)
    started = [launch for launch in launches if launch.started is not None]
    first = min(started, key=lambda one: one.on_axis(one.began), default=None)
    last = max(started, key=lambda one: one.on_axis(one.began), default=None)
    ended = job_outcome(_without_walls(launches, runs))
    duration_ns = max((attempt.ended for attempt in attempts), default=0)
    between_ns = _between(attempts)
    steps = [one.lost_steps for one in rounds if one.lost_steps is not None]
    spare_ns = sum(books.spare.values())
    return JobSummary(
        run_id=last.started.run_id if last and last.started else "",
        argv=last.started.argv if last and last.started else [],
        nodes=sorted({launch.node for launch in launches}),
        attempts=len(attempts),
        world_size=rounds[-1].world_size if rounds else 0,
        started_wall=first.started.wall if first and first.started else None,
        duration_ns=duration_ns,
        between_ns=between_ns,
        outcome=ended.outcome if ended else "",
        exit_code=ended.exit_code if ended else None,
        reason=ended.reason if ended else "",
        restarts=sum(max(0, len(attempt.worlds) - 1) for attempt in attempts),
        lost_steps=sum(steps) if steps else None,
        lost_ns=sum(map(_lost, rounds)),
        times=books.total,
        spare_ns=spare_ns,
        goodput=_goodput(books),
        ettr=_ettr(books, rounds, duration_ns),
        failures=_failures(rounds, books, attempts, runs),
        cost=None if price is None else cost_of(price, books.total, spare_ns),
        checkpoints=_checkpoints(attempts, told, duration_ns - between_ns),
        rounds=rounds,
        clocks=clocks,
        launches=runs,
        lanes=books.lanes,
        notes=notes_of(attempts, clocks),
    )


def _without_walls(launches: Iterable[Launch], runs: Iterable[RunSummary]) -> Iterator[RunSummary]:
    """Yield launches with their starts on the axis, instead of by wall clocks."""
    for launch, run in zip(launches, runs, strict=True):
        yield msgspec.structs.replace(run, started_wall=launch.on_axis(launch.began) / 1e9)


def _rounds(
    attempts: Sequence[Attempt], books: Books, runs: Sequence[RunSummary]
) -> list[JobRound]:
    """Return all rounds with their rank-time and what their failures cost in steps."""
    told = {(index, one.round): one for index, run in enumerate(runs) for one in run.rounds}
    rounds = []
    for index, attempt in enumerate(attempts):
        for world, following in zip(attempt.worlds, [*attempt.worlds[1:], None], strict=False):
            broke = books.broken.get((index, world.number))
            rounds.append(job_round(index, world, following, broke, told))
    return [
        msgspec.structs.replace(
            one,
            lost_steps=None if following is None else lost_steps(one, following),
            times=books.times[one.attempt, one.round],
            spare_ns=books.spare[one.attempt, one.round],
        )
        for one, following in zip(rounds, [*rounds[1:], None], strict=False)
    ]


def _goodput(books: Books) -> float | None:
    whole_ns = books.total.total_ns
    return books.total.productive_ns / whole_ns if books.stepped and whole_ns else None


def _ettr(books: Books, rounds: Iterable[JobRound], duration_ns: int) -> float | None:
    if not books.stepped or not duration_ns:
        return None
    ranks = ((one, sum(len(part.ranks) for part in one.parts)) for one in rounds)
    productive = sum(one.times.productive_ns / count for one, count in ranks if count)
    return min(1.0, productive / duration_ns)


def _lost(one: JobRound) -> int:
    """Return the time that was lost by the failure of a round, 0 if that is not known."""
    limit_ns = one.failure.limit_ns if one.failure is not None else None
    return 0 if one.restart_ns is None else one.restart_ns + (limit_ns or 0)


def _failures(
    rounds: Sequence[JobRound],
    books: Books,
    attempts: Sequence[Attempt],
    runs: Iterable[RunSummary],
) -> Failures:
    failed = [one.failure for one in rounds if one.failure is not None]
    ran_ns = 0
    for one in rounds:
        broke = books.broken.get((one.attempt, one.round))
        moments = (broke.broke_ns, broke.happened_ns) if broke else ()
        ends = [*moments, one.stopped_ns, attempts[one.attempt].ended]
        ran_ns += max(0, next(end for end in ends if end is not None) - one.began_ns)
    return Failures(
        count=len(failed),
        by_kind=dict(Counter(one.kind for one in failed).most_common()),
        by_node=dict(Counter(one.node for one in failed if one.node).most_common()),
        by_rank=dict(Counter(one.rank for one in failed if one.rank >= 0).most_common()),
        mttf_ns=ran_ns // len(failed) if failed else None,
        in_process=sum(len(one.inprocess) for run in runs for one in run.rounds),
    )


def _checkpoints(
    attempts: Sequence[Attempt], told: Sequence[Told], ran_ns: int
) -> Checkpoints | None:
    """Return what the ranks of all nodes have told of checkpoints, None if that is nothing."""
    of_job = joined(
        (number, told[launch.index])
        for number, attempt in enumerate(attempts)
        for launch in attempt.launches
    )
    return checkpoints(of_job, ran_ns)


def _between(attempts: Sequence[Attempt]) -> int:
    """Return the time in which no launcher ran, between two attempts."""
    until, gaps = 0, 0
    for attempt in attempts:
        gaps += max(0, attempt.began - until)
        until = max(until, attempt.ended)
    return gaps


def _clocks(launches: Iterable[Launch], places: Sequence[Place]) -> list[Clock]:
    by_clock: dict[int, list[Launch]] = {}
    for launch in launches:
        by_clock.setdefault(launch.clock, []).append(launch)
    return [
        Clock(
            boot_id=members[0].opened.boot_id if members[0].opened else "",
            nodes=sorted({one.node for one in members}),
            offset_ns=places[clock].offset_ns,
            uncertainty_ns=places[clock].uncertainty_ns,
            method=places[clock].method,
            drifts=places[clock].drifts,
        )
        for clock, members in by_clock.items()
    ]
