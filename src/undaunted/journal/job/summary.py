"""Makes a job, its rounds and the parts that nodes had of them out of journals. Pure.

A milestone that is not in the journal is None, and so is each duration that begins or ends with it.
All durations of a launch are of one node, and so of one clock.

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

from msgspec.structs import replace

from undaunted.base.text import format_duration, format_ranges
from undaunted.journal import events as e
from undaunted.journal.checkpoints import Checkpoints, Reports, checkpoints, joined, reports_of
from undaunted.journal.goodput import Account, Times, account, limit_of, times_of, went_on
from undaunted.journal.job.launches import Attempt, Launch, World, attempts_of
from undaunted.journal.job.rank_time import Price, RankTime, cost_of, rank_time
from undaunted.journal.job.values import (
    BootClock,
    Failures,
    InProcessRestart,
    JobRound,
    JobSummary,
    LaunchSummary,
    NodePart,
    Phases,
)
from undaunted.journal.query import every
from undaunted.journal.words import is_news, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from undaunted.journal.job.clocks import ClockOffset
    from undaunted.journal.launch import LaunchState, RoundState

FOR_ALL = ("finished", "no_restart", "invalid", "suspect", "straggler")
"""Said by one node, these outcomes hold for the job: no node hears of them alone."""

_LEFT = ("preempted", "excluded")
"""Outcomes of a node that the job may go on without."""

_NS = 1_000_000_000
# Notes of a launch, in this order.
_NOTED: tuple[type[e.Event], ...] = (
    e.TemplateLost, e.ImportsLearned, e.AgentPaused, e.EventsLost, e.RoundStopped,
    e.MemoryReclaimed, e.AttributionResult, e.NodeChecked, e.Remark,
)  # fmt: skip
_INSIDE = ("abort", "stop", "finalize", "health", "collect", "agree")

# A larger uncertainty is worth a line.
_UNCERTAIN_NS = 1_000_000_000
_SHOWN = 5


def summarize_job(
    launches: Sequence[Launch],
    *,
    price: Price | None = None,
    left_out: Sequence[str] = (),
    is_running: Callable[[e.JournalOpened], bool | None] | None = None,
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
            index=launch.index,
            offset_ns=launch.offset_ns,
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
    between_ns = _gaps(attempts)
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
        lost_ns=sum(one.lost_ns or 0 for one in rounds),
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
    launches: Iterable[Launch], runs: Sequence[LaunchSummary], attempts: Sequence[Attempt]
) -> Iterator[Launch]:
    """Yield the launches whose ends say how the job ended: the job may go on without the others."""
    worlds = attempts[-1].worlds if attempts else []
    members = {one.index for one in worlds[-1].launches} if worlds else set()
    for launch in launches:
        run = runs[launch.index]
        if not members or launch.index in members or not has_left(run):
            yield launch


def _without_walls(
    launches: Iterable[Launch], runs: Sequence[LaunchSummary]
) -> Iterator[LaunchSummary]:
    """Yield launches with their starts on the axis, instead of by wall clocks."""
    for launch in launches:
        run = runs[launch.index]
        yield replace(run, started_wall=launch.on_axis(launch.state.began_ns) / 1e9)


def _goodput(spent: RankTime) -> float | None:
    whole_ns = spent.total.total_ns
    return spent.total.productive_ns / whole_ns if spent.stepped and whole_ns else None


def _ettr(spent: RankTime, rounds: Iterable[JobRound], duration_ns: int) -> float | None:
    if not spent.stepped or not duration_ns:
        return None
    ranks = ((one, sum(len(part.ranks) for part in one.parts)) for one in rounds)
    productive = sum(one.times.productive_ns / count for one, count in ranks if count)
    return min(1.0, productive / duration_ns)


def _failures(
    rounds: Sequence[JobRound],
    spent: RankTime,
    attempts: Sequence[Attempt],
    runs: Iterable[LaunchSummary],
) -> Failures:
    failed = [one.failure for one in rounds if one.failure is not None]
    ran_ns = 0
    for one in rounds:
        broke = spent.failures.get((one.attempt, one.round))
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


def _gaps(attempts: Sequence[Attempt]) -> int:
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


def job_outcome(launches: Iterable[LaunchSummary]) -> LaunchSummary | None:
    """Tell how the job ended that was started last in a run directory.

    A launcher that was lost, left or was excluded on the way does not decide about the job; its
    exit code is that of its node only.

    Args:
        launches: of all nodes, also earlier ones.

    Returns:
        The end, None if no launch has recorded one, or those that have left while others run.
    """
    ended = []
    last_start = 0.0
    others_run = False
    for launch in launches:
        others_run = others_run or bool(launch.running)
        start = launch.started_wall or 0.0
        last_start = max(last_start, start)
        if launch.exit_code is not None:
            ended.append((start + (launch.duration_ns or 0) / 1e9, launch))
    # A launcher that ended before the last one started was gone, or is of an earlier job.
    ends = [each for each in ended if each[0] >= last_start]
    if not ends:
        return None
    for outcome in FOR_ALL:
        for _, launch in ends:
            if launch.outcome == outcome:
                return launch
    if others_run and all(has_left(launch) for _, launch in ends):
        return None
    for_all = [each for each in ends if not each[1].alone]
    if any(launch.outcome == "failed" for _, launch in for_all):
        ends = for_all  # a node that was cut off may have ended later, and knows less
    return max(ends, key=lambda each: each[0])[1]


def has_left(launch: LaunchSummary) -> bool:
    """Tell whether a launch ended by itself: the job may have gone on without its node."""
    return launch.alone or launch.outcome in _LEFT


# --- rounds ---------------------------------------------------------------------------------------


def _rounds(
    attempts: Sequence[Attempt], spent: RankTime, runs: Sequence[LaunchSummary]
) -> list[JobRound]:
    """Return all rounds, with what their failures cost in steps."""
    parts = {(part.launch, part.round): part for run in runs for part in run.rounds}
    rounds = [
        _round(index, world, following, spent, parts)
        for index, attempt in enumerate(attempts)
        for world, following in zip(attempt.worlds, [*attempt.worlds[1:], None], strict=False)
    ]
    return [
        replace(one, lost_steps=_lost_steps(one, following))
        for one, following in zip(rounds, [*rounds[1:], None], strict=False)
    ]


def _round(
    attempt: int,
    world: World,
    following: World | None,
    spent: RankTime,
    parts_of: Mapping[tuple[int, int], NodePart],
) -> JobRound:
    """Return a round, but for the steps that it lost.

    Args:
        attempt: in which it was.
        world: the round on all its nodes.
        following: the next round of the attempt, None if there is none.
        spent: how it failed, how long it went on, and its rank-time.
        parts_of: of the nodes, by index of the launch and number of the round.
    """
    key = attempt, world.number
    broke = spent.failures.get(key)
    failed_ns = broke.happened_ns if broke else None
    parts = [parts_of[one.index, world.number] for one in world.launches]
    firsts = [one.iterations[0] for one in parts if one.iterations]
    lasts = [one.last_iteration for one in parts if one.last_iteration is not None]
    stopped_ns = max((one.stopped_ns for one in parts if one.stopped_ns is not None), default=None)
    if stopped_ns is not None and following is not None:
        stopped_ns = min(stopped_ns, following.began)  # the job goes on without a node cut off
    # A node that was cut off, and has no part in the next round, knows the cause least.
    here = {one.index for one in (following or world).launches}
    by_word = sorted(parts, key=lambda one: one.launch not in here)
    return JobRound(
        attempt=attempt,
        round=world.number,
        world_size=world.size or len(world.ranks),
        began_ns=world.began,
        stopped_ns=stopped_ns,
        outcome=broke.failure.kind if broke else _outcome_of_all({one.outcome for one in parts}),
        cause=(broke and broke.failure.line) or next((p.cause for p in by_word if p.cause), ""),
        failure=broke.failure if broke else None,
        failed_ns=failed_ns,
        advised=next((one.advised for one in by_word if one.advised is not None), None),
        pause=next(filter(None, (one.pause for one in parts)), ""),
        first_iteration=min(firsts, default=None),
        last_iteration=max(lasts, default=None),
        restart_ns=_restart(spent.worked_until.get(key, failed_ns), following),
        times=spent.times[key],
        spare_ns=spent.spare[key],
        parts=parts,
    )


def _lost_steps(one: JobRound, following: JobRound | None) -> int | None:
    """Return how many steps a round had completed that the next one did again."""
    if following is None or one.last_iteration is None or following.first_iteration is None:
        return None
    return max(0, one.last_iteration - following.first_iteration)


def _outcome_of_all(outcomes: set[str]) -> str:
    return next((one for one in ("finished", "stopped") if one in outcomes), "")


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


# --- launches -------------------------------------------------------------------------------------


def summarize(
    launch: LaunchState,
    *,
    running: bool | None = None,
    spent: Account | None = None,
    reports: Reports | None = None,
    index: int = 0,
    offset_ns: int = 0,
) -> LaunchSummary:
    """Return the summary of one launch.

    Args:
        launch: what its journal tells.
        running: whether its launcher still runs, None = not known.
        spent: where its time went, if more is known about that than its journal tells.
        reports: of its ranks about checkpoints.
        index: of the launch in its job.
        offset_ns: added to its times to get moments on the axis of the job.
    """
    opened = launch.opened or e.JournalOpened(t=0)
    job, end = launch.job, launch.ended
    spent = spent or account(launch)
    rounds = launch.ordered()
    parts = [
        _part(one, following, launch, spent.rounds[one.number], index, offset_ns)
        for one, following in zip(rounds, [*rounds[1:], None], strict=False)
    ]
    lost = [one.lost_ns for one in parts[:-1]]
    return LaunchSummary(
        node=launch.node,
        run_id=job.run_id if job else "",
        argv=job.argv if job else [],
        nproc_per_node=job.nproc_per_node if job else 0,
        max_restarts=job.max_restarts if job else 0,
        boot_id=opened.boot_id,
        pid=opened.pid,
        started_wall=job.wall if job else None,
        duration_ns=_between(job.t if job else None, end.t if end else None),
        outcome=end.outcome if end else "",
        running=None if end else running,
        exit_code=end.exit_code if end else None,
        reason=end.reason if end else "",
        alone=bool(end and end.alone),
        restarts=max(0, len(parts) - 1),
        restarts_ordered=launch.restarts_ordered,
        lost_ns=sum(lost_ns or 0 for lost_ns in lost),
        untimed_restarts=lost.count(None),
        times=spent.total,
        goodput=spent.goodput,
        log_dir=job.log_dir if job else "",
        rounds=parts,
        checkpoints=None if reports is None else checkpoints(reports, spent.total.total_ns),
        notes=_notes(launch),
    )


def _notes(launch: LaunchState) -> list[str]:
    sums: dict[type[e.Event], dict[str, float]] = {
        e.AgentPaused: {"seconds": launch.paused_s},
        e.EventsLost: {"count": launch.lost},
    }
    told: list[e.Event] = []
    for kind in _NOTED:
        events = every(launch.remarks, kind)
        if events and kind in sums:  # of several the sum counts
            events = [replace(events[-1], **sums[kind])]
        told += filter(is_news, events)
    end = launch.ended.reason if launch.ended is not None else ""
    return [
        words_of(event).full
        for event in told
        if getattr(event, "level", "error") == "error"  # of remarks
        and not (isinstance(event, e.NodeChecked) and event.problem in end)
    ]


def _between(start: int | None, end: int | None) -> int | None:
    """Return the time between, at least 0: a rank may run before the agent knows it exists."""
    return None if start is None or end is None else max(0, end - start)


def _part(
    one: RoundState,
    following: RoundState | None,
    launch: LaunchState,
    times: Times,
    index: int,
    offset_ns: int,
) -> NodePart:
    """Return what the node of a launch had of a round."""
    end = launch.ended if following is None else None
    started, spawned = one.first(e.RoundStarted), one.first(e.WorkersSpawned)
    stopped, evidence = one.first(e.RoundStopped), one.first(e.EvidenceCollected)
    verdict, failure = one.first(e.Verdict), one.first(e.FailureDetected)
    over = stopped or end
    return NodePart(
        node=launch.node,
        launch=index,
        round=one.number,
        began_ns=one.began_ns + offset_ns,
        stopped_ns=stopped.t + offset_ns if stopped else None,
        started_wall=started.wall if started else None,
        duration_ns=_between(started.t if started else None, over.t if over else None),
        ranks=one.ranks,
        world_size=started.world_size if started else 0,
        worker_start=spawned.mode if spawned else "",
        outcome=_outcome(one, verdict or failure, end),
        cause=_left_behind(one, end) or _cause(one, verdict, failure) + _follows(one, launch.node),
        verdict=verdict,
        advised=one.first(e.RoundAdvised),
        pause=one.pause,
        iterations=sorted(one.iterations),
        last_iteration=one.last_iteration,
        exits=list(one.exits),
        pauses=list(one.pauses),
        stacks=(verdict.stacks if verdict else "") or (evidence.path if evidence else ""),
        phases=_phases(one, following, launch.until_ns) if verdict or failure else None,
        inprocess=_inprocess(one),
        times=times,
    )


def _outcome(
    one: RoundState, failed: e.Verdict | e.FailureDetected | None, end: e.JobEnded | None
) -> str:
    if failed is not None:
        return failed.kind
    if end is not None and end.outcome == "finished" and end.last_round in (-1, one.number):
        return "finished"
    return "stopped" if one.stage in ("stopping", "stopped") else ""


def _cause(one: RoundState, verdict: e.Verdict | None, failure: e.FailureDetected | None) -> str:
    """Return the best explanation the journal has."""
    if (judged := verdict or failure) is not None:
        return words_of(judged).full
    if (stop := one.first(e.StopRequested)) is not None:
        return stop.reason
    asked = one.first(e.ControlRequested) or one.first(e.SignalReceived)
    return "" if asked is None else words_of(asked).text


def _left_behind(one: RoundState, end: e.JobEnded | None) -> str:
    """Say that the job went on without a node that stood still: it knows no other cause."""
    if not one.pauses or end is None or end.last_round <= one.number:
        return ""
    seconds = one.pauses[-1].seconds
    return f"the agent, or its machine, stood still for {seconds:.1f} s: the job went on without it"


def _follows(one: RoundState, node: str) -> str:
    """Say what failed before on another node, of which the failure of this one is a consequence."""
    blamed, failure = one.first(e.RoundBlamed), one.first(e.FailureDetected)
    if blamed is None or failure is None or blamed.node == node:
        return ""
    if node not in blamed.victims and (failure.t < blamed.t or went_on(one, blamed.t)):
        return ""
    return f"; this follows from another failure: {blamed.line}"


def _phases(one: RoundState, after: RoundState | None, until_ns: int) -> Phases:
    ends = times_of(one, until_ns if after is None else after.began_ns)
    starts = Times() if after is None else times_of(after, until_ns)
    spawned = after.time_of(e.WorkersSpawned) if after is not None else None
    first_line = after.all_passed("first_line") if after is not None else None
    first_step = after.all_passed("first_step") if after is not None else None
    began = one.time_of(e.FailureDetected) if one.since_ns is None else one.since_ns
    return Phases(
        detect_ns=max(0, ends.detect_ns - limit_of(one)) or None,
        evidence_ns=ends.evidence_ns or None,
        decide_ns=ends.decide_ns or None,
        stop_ns=ends.stop_ns or None,
        idle_ns=(ends.idle_ns or None) if after is not None else None,
        spawn_ns=None if spawned is None else starts.spawn_ns or None,
        import_ns=None if first_line is None else starts.import_ns or None,
        initialise_ns=None if first_step is None else starts.initialise_ns or None,
        load_ns=None if first_step is None else starts.load_ns or None,
        total_ns=_between(began, first_line),
        total_to_step_ns=_between(began, first_step),
    )


def _inprocess(one: RoundState) -> list[InProcessRestart]:
    """Return the restarts inside of the processes of a round, in order."""
    restarts: dict[tuple[int, int], dict[str, e.InProcessPhase]] = {}
    for (call, epoch, name), phase in one.inprocess.items():
        restarts.setdefault((call, epoch), {})[name] = phase
    return [_inside(*key, phases) for key, phases in sorted(restarts.items())]


def _inside(call: int, epoch: int, phases: dict[str, e.InProcessPhase]) -> InProcessRestart:
    began, runs = phases.get("detect"), phases.get("re-enter")
    last = runs or began
    took = {f"{name}_ns": round(phases[name].took_s * _NS) for name in _INSIDE if name in phases}
    return InProcessRestart(
        call=call,
        epoch=epoch,
        causes=last.reasons if last else [],
        members=runs.members if runs else 0,
        lost=runs.lost if runs else [],
        total_ns=round(runs.took_s * _NS) if runs else None,
        **took,
    )


# --- notes ----------------------------------------------------------------------------------------


def _slow_ranks(attempts: Iterable[Attempt]) -> Iterator[str]:
    """Yield who was slow, by how much and for how long: once, though every node has noted it."""
    for attempt in attempts:
        notes: dict[tuple[int, int, str], str] = {}
        for launch in attempt.launches:
            told = every(launch.state.remarks, e.SlowRank)
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


def _is_same_rank(one: e.SlowRank, other: e.SlowRank) -> bool:
    return (one.round, one.rank) == (other.round, other.rank)


def _missing(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield the ranks that are in no journal."""
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
            f"no journal has {who} in {which}; their time is not in the sums: "
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
            f"out: {', '.join(left_out)}; put the journals of each job into another directory"
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
