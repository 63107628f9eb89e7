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

from undaunted.base.text import format_duration, format_ranges
from undaunted.journal.checkpoints import Checkpoints, Reports, checkpoints, joined, reports_of
from undaunted.journal.events import RoundStopped, SlowRank
from undaunted.journal.job.launches import Attempt, Launch, World, attempts_of
from undaunted.journal.job.rank_time import Price, RankTime, cost_of, rank_time
from undaunted.journal.job.values import BootClock, Failures, JobRound, JobSummary, NodePart
from undaunted.journal.query import every
from undaunted.journal.summary import RoundSummary, RunSummary, has_left, job_outcome, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from undaunted.journal.events import JournalOpened
    from undaunted.journal.job.clocks import ClockOffset

# A larger uncertainty is worth a line.
_UNCERTAIN_NS = 1_000_000_000
_SHOWN = 5
# What a node tells of each round: by index of the launch and number of the round.
_ByRound = dict[tuple[int, int], RoundSummary]


def summarize_job(
    launches: Sequence[Launch],
    *,
    price: Price | None = None,
    left_out: Sequence[str] = (),
    is_running: Callable[[JournalOpened], bool | None] | None = None,
) -> JobSummary:
    """Return what a job was, from its launches on all its nodes; puts them on the axis of the job.

    Args:
        launches: of all nodes, see `launches_of`; all are taken for one job.
        price: of a rank for an hour, None = costs are not shown.
        left_out: names of runs of other jobs, of which there were journals too.
        is_running: tells whether a launcher still runs, None = that is not known.
    """
    attempts, places = attempts_of(launches)
    spent = rank_time(launches, attempts)
    reports = [reports_of(launch.events) for launch in launches]
    runs = [
        summarize(
            launch.state,
            running=is_running(opened) if is_running and (opened := launch.state.opened) else None,
            spent=spent.accounts[launch.index],
            reports=reports[launch.index],
        )
        for launch in launches
    ]
    rounds = _rounds(attempts, spent, runs)
    clocks = _clocks(launches, places)
    started = [(one.on_axis(job.t), job) for one in launches if (job := one.state.job) is not None]
    first = min(started, key=lambda one: one[0], default=(0, None))[1]
    last = max(started, key=lambda one: one[0], default=(0, None))[1]
    ended = job_outcome(_without_walls(_deciding(launches, runs, attempts), runs))
    duration_ns = max((attempt.ended for attempt in attempts), default=0)
    between_ns = _between(attempts)
    steps = [one.lost_steps for one in rounds if one.lost_steps is not None]
    spare_ns = sum(spent.spare.values())
    slow = list(_slow_ranks(attempts))
    other_runs = _other_runs(launches, left_out)
    return JobSummary(
        run_id=last.run_id if last else "",
        argv=last.argv if last else [],
        nodes=sorted({launch.node for launch in launches}),
        attempts=len(attempts),
        world_size=rounds[-1].world_size if rounds else 0,
        started_wall=first.wall if first else None,
        duration_ns=duration_ns,
        between_ns=between_ns,
        outcome=ended.outcome if ended else "",
        exit_code=ended.exit_code if ended else None,
        reason=ended.reason if ended else "",
        restarts=sum(max(0, len(attempt.worlds) - 1) for attempt in attempts),
        restarts_ordered=sum(
            max(one.state.restarts_ordered for one in each.launches) for each in attempts
        ),
        lost_steps=sum(steps) if steps else None,
        lost_ns=sum(map(_lost, rounds)),
        times=spent.total,
        spare_ns=spare_ns,
        goodput=_goodput(spent),
        ettr=_ettr(spent, rounds, duration_ns),
        failures=_failures(rounds, spent, attempts, runs),
        cost=None if price is None else cost_of(price, spent.total, spare_ns),
        checkpoints=_checkpoints(attempts, reports, duration_ns - between_ns),
        rounds=rounds,
        clocks=clocks,
        launches=runs,
        lanes=spent.lanes,
        slow=slow,
        other_runs=other_runs,
        notes=[*filter(None, [other_runs]), *slow, *_missing(attempts), *_of_clocks(clocks)],
    )


def _deciding(
    launches: Iterable[Launch], runs: Sequence[RunSummary], attempts: Sequence[Attempt]
) -> Iterator[Launch]:
    """Yield the launches whose ends say how the job ended: the job may go on without the others."""
    worlds = attempts[-1].worlds if attempts else []
    members = {one.index for one in worlds[-1].launches} if worlds else set()
    for launch in launches:
        run = runs[launch.index]
        if not members or launch.index in members or not has_left(run):
            yield launch


def _without_walls(launches: Iterable[Launch], runs: Sequence[RunSummary]) -> Iterator[RunSummary]:
    """Yield launches with their starts on the axis, instead of by wall clocks."""
    for launch in launches:
        run = runs[launch.index]
        yield msgspec.structs.replace(run, started_wall=launch.on_axis(launch.state.began_ns) / 1e9)


def _rounds(
    attempts: Sequence[Attempt], spent: RankTime, runs: Sequence[RunSummary]
) -> list[JobRound]:
    """Return all rounds with their rank-time and what their failures cost in steps."""
    by_round = {(index, one.round): one for index, run in enumerate(runs) for one in run.rounds}
    rounds = []
    for index, attempt in enumerate(attempts):
        for world, following in zip(attempt.worlds, [*attempt.worlds[1:], None], strict=False):
            rounds.append(_round(index, world, following, spent, by_round))
    return [
        msgspec.structs.replace(
            one,
            lost_steps=None if following is None else _lost_steps(one, following),
            times=spent.times[one.attempt, one.round],
            spare_ns=spent.spare[one.attempt, one.round],
        )
        for one, following in zip(rounds, [*rounds[1:], None], strict=False)
    ]


def _goodput(spent: RankTime) -> float | None:
    whole_ns = spent.total.total_ns
    return spent.total.productive_ns / whole_ns if spent.stepped and whole_ns else None


def _ettr(spent: RankTime, rounds: Iterable[JobRound], duration_ns: int) -> float | None:
    if not spent.stepped or not duration_ns:
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
    spent: RankTime,
    attempts: Sequence[Attempt],
    runs: Iterable[RunSummary],
) -> Failures:
    failed = [one.failure for one in rounds if one.failure is not None]
    ran_ns = 0
    for one in rounds:
        broke = spent.broken.get((one.attempt, one.round))
        moments = (broke.broke_ns, broke.happened_ns) if broke else ()
        moments = (spent.worked_until.get((one.attempt, one.round)), *moments)
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
    attempts: Sequence[Attempt], reports: Sequence[Reports], ran_ns: int
) -> Checkpoints | None:
    """Return what the ranks of all nodes have told of checkpoints, None = nothing."""
    of_job = joined(
        (number, reports[launch.index])
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


def _clocks(launches: Iterable[Launch], places: Sequence[ClockOffset]) -> list[BootClock]:
    by_clock: dict[int, list[Launch]] = {}
    for launch in launches:
        by_clock.setdefault(launch.clock, []).append(launch)
    return [
        BootClock(
            boot_id=opened.boot_id if (opened := members[0].state.opened) else "",
            nodes=sorted({one.node for one in members}),
            offset_ns=places[clock].offset_ns,
            uncertainty_ns=places[clock].uncertainty_ns,
            method=places[clock].method,
            drifts=places[clock].drifts,
        )
        for clock, members in by_clock.items()
    ]


# --- rounds ---------------------------------------------------------------------------------------


def _round(
    attempt: int, world: World, following: World | None, spent: RankTime, by_round: _ByRound
) -> JobRound:
    """Return a round without its rank-time.

    Args:
        attempt: in which it was.
        world: the round on all its nodes.
        following: the next round of the attempt, None if there is none.
        spent: how it failed, and how long it went on.
        by_round: what each launch says of its rounds.
    """
    broke = spent.broken.get((attempt, world.number))
    failed_ns = broke.happened_ns if broke else None
    parts = _parts(world, by_round)
    # A node that was cut off, and has no part in the next round, knows the cause least.
    by_word = sorted(
        world.launches, key=lambda one: following is not None and one not in following.launches
    )
    of_nodes = [by_round[one.index, world.number] for one in by_word]
    firsts = [one.iterations[0] for one in of_nodes if one.iterations]
    lasts = [one.last_iteration for one in of_nodes if one.last_iteration is not None]
    stops = [part.stopped_ns for part in parts if part.stopped_ns is not None]
    if stops and following is not None:
        stops = [
            min(max(stops), following.began)
        ]  # the job does not wait for nodes that are cut off
    causes = [one.cause for one in of_nodes if one.cause]
    return JobRound(
        attempt=attempt,
        round=world.number,
        world_size=world.size or len(world.ranks),
        began_ns=world.began,
        stopped_ns=max(stops, default=None),
        outcome=broke.failure.kind if broke else _outcome([one.outcome for one in of_nodes]),
        cause=(broke.failure.line if broke else "") or next(iter(causes), ""),
        failure=broke.failure if broke else None,
        failed_ns=failed_ns,
        advised=next((one.advised for one in of_nodes if one.advised is not None), None),
        first_iteration=min(firsts, default=None),
        last_iteration=max(lasts, default=None),
        restart_ns=_restart(spent.worked_until.get((attempt, world.number), failed_ns), following),
        parts=parts,
    )


def _lost_steps(one: JobRound, following: JobRound) -> int | None:
    """Return how many steps a round had completed that the next one did again."""
    if one.last_iteration is None or following.first_iteration is None:
        return None
    return max(0, one.last_iteration - following.first_iteration)


def _parts(world: World, by_round: _ByRound) -> list[NodePart]:
    parts = []
    for launch in world.launches:
        one = launch.state.rounds[world.number]
        stopped = one.time_of(RoundStopped)
        parts.append(
            NodePart(
                node=launch.node,
                launch=launch.index,
                ranks=one.ranks,
                began_ns=launch.on_axis(one.began_ns),
                stopped_ns=None if stopped is None else launch.on_axis(stopped),
                times=by_round[launch.index, world.number].times,
            )
        )
    return parts


def _outcome(of_nodes: list[str]) -> str:
    return next((one for one in ("finished", "stopped") if one in of_nodes), "")


def _restart(failed_ns: int | None, following: World | None) -> int | None:
    """Return the time from a failure until the program ran on all ranks of the next round."""
    if failed_ns is None or following is None:
        return None
    if len(following.ranks) < following.size:
        return None  # the journal of a node is missing
    moments = []
    for launch in following.launches:
        moment = launch.state.rounds[following.number].all_passed("first_line")
        if moment is None:
            return None
        moments.append(launch.on_axis(moment))
    return max(0, max(moments) - failed_ns)


# --- notes ----------------------------------------------------------------------------------------


def _slow_ranks(attempts: Iterable[Attempt]) -> Iterator[str]:
    """Yield who was slow, by how much and for how long: once, though every node has noted it."""
    for attempt in attempts:
        notes: dict[tuple[int, int, str], str] = {}
        for launch in attempt.launches:
            told = every(launch.state.remarks, SlowRank)
            for place, slow in enumerate(told):
                over = [one.t for one in told[place:] if one.over and _is_same_rank(one, slow)]
                key = (slow.round, slow.rank, slow.line)
                if slow.over or (key in notes and not over):
                    continue
                long = "up to the end of the round"
                if over:
                    long = f"for {format_duration((over[0] - slow.t) / 1e9)}"
                notes[key] = f"round {slow.round}, {long}: {slow.line}"
        yield from notes.values()


def _is_same_rank(one: SlowRank, other: SlowRank) -> bool:
    return (one.round, one.rank) == (other.round, other.rank)


def _missing(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield which ranks no journal tells of."""
    rounds: dict[tuple[range, ...], list[str]] = {}
    for index, attempt in enumerate(attempts):
        for world in attempt.worlds:
            if missing := world.missing:
                name = f"{world.number}" if len(attempts) == 1 else f"{index}.{world.number}"
                rounds.setdefault(missing, []).append(name)
    for ranks, numbers in rounds.items():
        who = f"rank{'s' * (sum(map(len, ranks)) > 1)} {format_ranges(ranks)}"
        which = f"round {numbers[0]}"
        if len(numbers) > 1:
            which = f"{len(numbers)} rounds ({numbers[0]} to {numbers[-1]})"
        yield (
            f"no journal tells of {who} in {which}; their time is not in the sums: "
            "either their node was lost before it could write, or its journal is missing here"
        )


def _other_runs(launches: Iterable[Launch], left_out: Sequence[str]) -> str:
    """Say whether runs of other names are counted as this job, or were left out; "" = neither."""
    runs = sorted({one.state.job.run_id for one in launches if one.state.job is not None})
    names = ", ".join(runs)
    said = []
    if left_out:
        said.append(
            f"journals of different jobs are in one directory: this is the newest, {names}; left "
            f"out: {', '.join(left_out)}; put the journals of each job into a directory of its own"
        )
    if len(runs) > 1:
        said.append(f"the journals are of several runs ({names}), counted as one job")
    return "; ".join(said)


def _of_clocks(clocks: Sequence[BootClock]) -> Iterator[str]:
    for method, how in (
        ("wall", "only by wall clocks, which may be wrong"),
        ("start", "by nothing; they are shown as if they had begun with the job"),
    ):
        if nodes := [node for clock in clocks if clock.method == method for node in clock.nodes]:
            yield f"the times of {_names(nodes)} are related to the others {how}"
    if drifting := [node for clock in clocks if clock.drifts for node in clock.nodes]:
        yield f"the clocks of {_names(drifting)} run at another rate than those of the others"
    unsure = [clock for clock in clocks if (clock.uncertainty_ns or 0) > _UNCERTAIN_NS]
    if unsure:
        nodes = [node for clock in unsure for node in clock.nodes]
        most = max(clock.uncertainty_ns or 0 for clock in unsure)
        yield f"the times of {_names(nodes)} are known to ±{format_duration(most / 1e9)} only"


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:_SHOWN])
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {shown}{more}"
