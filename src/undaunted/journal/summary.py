"""What one launch was: its rounds, how long each restart took, how it and its job ended. Pure.

A milestone that is not in the journal is None, and so is each duration that begins or ends with it.
All that a launch tells is of one node, so that all its times are of one clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.journal import events as e
from undaunted.journal.checkpoints import Checkpoints, Reports, checkpoints
from undaunted.journal.goodput import Account, Times, account, limit_of, times_of, went_on
from undaunted.journal.query import every
from undaunted.journal.words import is_news, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from undaunted.journal.launch import LaunchState, RoundState

FOR_ALL = ("finished", "no_restart", "invalid", "suspect", "straggler")
"""Said by one node, these outcomes hold for the job: no node hears of them alone."""

_LEFT = ("preempted", "excluded")
"""Outcomes of a node that the job may go on without."""

_NS = 1_000_000_000
# What a reader should know besides, in this order.
_NOTED: tuple[type[e.Event], ...] = (
    e.TemplateLost, e.ImportsLearned, e.AgentPaused, e.EventsLost, e.RoundStopped,
    e.MemoryReclaimed, e.AttributionResult, e.NodeChecked, e.Remark,
)  # fmt: skip
_INSIDE = ("abort", "stop", "finalize", "health", "collect", "agree")


class Phases(msgspec.Struct, kw_only=True, frozen=True):
    """How long each part of getting over one failure took, in nanoseconds.

    The parts are the classes of `goodput.Times`: of the round that failed, from its failure on, and
    of the round after it, up to its first step. None = not recorded, or no time was spent on it.

    Attributes:
        detect_ns: from when it happened to when the agent noticed; a hang happens when its limit is
            passed, so that the limit is not in here.
        evidence_ns: until stacks and process states were gathered and judged.
        decide_ns: until the ranks were told to stop.
        stop_ns: until no process of the round was left.
        idle_ns: until the next round began.
        spawn_ns: until all its workers existed, without the template's imports.
        import_ns: the template's imports, and until the user's program had begun on every rank.
        initialise_ns: until monitoring had begun on every rank.
        load_ns: until every rank had called ``undaunted.step``.
        total_ns: from when it happened (noticed, where nobody knows) until the user's program had
            begun on every rank.
        total_to_step_ns: the same until every rank had called ``undaunted.step``.
    """

    detect_ns: int | None = None
    evidence_ns: int | None = None
    decide_ns: int | None = None
    stop_ns: int | None = None
    idle_ns: int | None = None
    spawn_ns: int | None = None
    import_ns: int | None = None
    initialise_ns: int | None = None
    load_ns: int | None = None
    total_ns: int | None = None
    total_to_step_ns: int | None = None


class InProcessRestart(msgspec.Struct, kw_only=True, frozen=True):
    """How a function came to run again; durations in nanoseconds, None = not recorded.

    Attributes:
        call: how many calls of restartable functions there were before.
        epoch: the how-manieth restart of that call, from 1.
        causes: one line per reason.
        members: how many ranks ran the function again, 0 = it did not come to that.
        lost: which ranks of the job did not.
        abort_ns: the longest abort of communication.
        stop_ns: the longest time from there until a rank was out of the function.
        finalize_ns: the longest ``finalize``.
        health_ns: the longest health check.
        collect_ns: the longest collection of garbage.
        agree_ns: what else it took until all were known to be ready.
        total_ns: from the first reason until all were told to run the function.
    """

    call: int
    epoch: int
    causes: list[str] = []
    members: int = 0
    lost: list[int] = []
    abort_ns: int | None = None
    stop_ns: int | None = None
    finalize_ns: int | None = None
    health_ns: int | None = None
    collect_ns: int | None = None
    agree_ns: int | None = None
    total_ns: int | None = None


class RoundSummary(msgspec.Struct, kw_only=True, frozen=True):
    """One round.

    Attributes:
        round: its number.
        started_wall: Unix time in seconds.
        duration_ns: until no process was left, or the job ended; None if neither is recorded.
        ranks: this node's global ranks.
        world_size: ranks on all nodes.
        worker_start: ``warm`` or ``fresh``, "" if no worker was started.
        outcome: ``finished``, ``crash``, ``hang`` or ``spawn`` (the kind of failure), ``stopped``
            (on request or by a signal), or "" if the journal does not tell.
        cause: one line: the verdict or what else ended the round.
        verdict: the verdict, if there was one.
        advised: what was best done after it, None = it did not fail or nothing was said.
        iterations: first iteration of the ranks that took part, lowest first.
        last_iteration: the highest iteration begun, None if no rank began one or it is not
            recorded.
        exits: how the processes of the ranks ended.
        stacks: the file of the full evidence.
        phases: how long the failure took to be got over; None if the round did not fail.
        inprocess: restarts inside of the processes of the round.
        times: where the time of the round went, until the next one began.
    """

    round: int
    started_wall: float | None = None
    duration_ns: int | None = None
    ranks: list[int] = []
    world_size: int = 0
    worker_start: str = ""
    outcome: str = ""
    cause: str = ""
    verdict: e.Verdict | None = None
    advised: e.RoundAdvised | None = None
    iterations: list[int] = []
    last_iteration: int | None = None
    exits: list[e.RankExited] = []
    stacks: str = ""
    phases: Phases | None = None
    inprocess: list[InProcessRestart] = []
    times: Times = msgspec.field(default_factory=Times)


class RunSummary(msgspec.Struct, kw_only=True, frozen=True):
    """One launch on one node.

    Attributes:
        node: name of the node.
        run_id: name of the run.
        argv: the user's program and its arguments.
        nproc_per_node: ranks on this node.
        max_restarts: the budget.
        boot_id: of the machine, "" if unknown.
        pid: of the agent, 0 if unknown.
        started_wall: Unix time in seconds.
        duration_ns: until the end of the job, None if none is recorded.
        outcome: as in ``JobEnded``; "" if the journal has no end.
        running: whether the launcher still runs, where that is known: only if there is no end.
        exit_code: of the launcher.
        reason: why it ended.
        alone: as in ``JobEnded``.
        restarts: rounds that were followed by another.
        restarts_ordered: those of them that somebody has ordered, beside the budget.
        lost_ns: sum over the restarts of ``total_ns`` and, after hangs, of the limit that had to
            pass; restarts whose time is not known add nothing.
        untimed_restarts: how many those are.
        times: where the time went, until the end of the job or the last event.
        goodput: the productive part of that time, 0 to 1; None if no rank called
            ``undaunted.step``.
        log_dir: redirected output of the ranks, "" if there is none.
        rounds: all rounds, by number.
        checkpoints: what they have cost; None if no rank has told of any.
        notes: what else a reader should know, one line each.
    """

    node: str = ""
    run_id: str = ""
    argv: list[str] = []
    nproc_per_node: int = 0
    max_restarts: int = 0
    boot_id: str = ""
    pid: int = 0
    started_wall: float | None = None
    duration_ns: int | None = None
    outcome: str = ""
    running: bool | None = None
    exit_code: int | None = None
    reason: str = ""
    alone: bool = False
    restarts: int = 0
    restarts_ordered: int = 0
    lost_ns: int = 0
    untimed_restarts: int = 0
    times: Times = msgspec.field(default_factory=Times)
    goodput: float | None = None
    log_dir: str = ""
    rounds: list[RoundSummary] = []
    checkpoints: Checkpoints | None = None
    notes: list[str] = []


class JobOutcome(NamedTuple):
    """How a job has ended: as in ``JobEnded``, and on which node that is written."""

    outcome: str
    exit_code: int
    reason: str
    node: str


def summarize(
    launch: LaunchState,
    *,
    running: bool | None = None,
    spent: Account | None = None,
    reports: Reports | None = None,
) -> RunSummary:
    """Return the summary of one launch.

    Args:
        launch: what its journal tells.
        running: whether its launcher still runs, None = not known.
        spent: where its time went, if more is known about that than its journal tells.
        reports: of its ranks about checkpoints.
    """
    opened = launch.opened or e.JournalOpened(t=0)
    job, end = launch.job, launch.ended
    spent = spent or account(launch)
    rounds = _rounds(launch, spent)
    lost_ns, untimed = _lost(rounds)
    return RunSummary(
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
        restarts=max(0, len(rounds) - 1),
        restarts_ordered=launch.restarts_ordered,
        lost_ns=lost_ns,
        untimed_restarts=untimed,
        times=spent.total,
        goodput=spent.goodput,
        log_dir=job.log_dir if job else "",
        rounds=rounds,
        checkpoints=None if reports is None else checkpoints(reports, spent.total.total_ns),
        notes=_notes(launch),
    )


def _rounds(launch: LaunchState, spent: Account) -> list[RoundSummary]:
    rounds = launch.ordered()
    return [
        _round(one, after, launch, spent.rounds[one.number])
        for one, after in zip(rounds, [*rounds[1:], None], strict=False)
    ]


def _round(
    one: RoundState, after: RoundState | None, launch: LaunchState, times: Times
) -> RoundSummary:
    end = launch.ended if after is None else None
    started, spawned = one.first(e.RoundStarted), one.first(e.WorkersSpawned)
    stopped, evidence = one.first(e.RoundStopped), one.first(e.EvidenceCollected)
    verdict, failure = one.first(e.Verdict), one.first(e.FailureDetected)
    over = stopped or end
    return RoundSummary(
        round=one.number,
        started_wall=started.wall if started else None,
        duration_ns=_between(started.t if started else None, over.t if over else None),
        ranks=started.ranks if started else [],
        world_size=started.world_size if started else 0,
        worker_start=spawned.mode if spawned else "",
        outcome=_outcome(one, verdict or failure, end),
        cause=_left_behind(one, launch, end)
        or _cause(one, verdict, failure) + _follows(one, launch.node),
        verdict=verdict,
        advised=one.first(e.RoundAdvised),
        iterations=sorted(one.iterations),
        last_iteration=one.last_iteration,
        exits=list(one.exits),
        stacks=(verdict.stacks if verdict else "") or (evidence.path if evidence else ""),
        phases=_phases(one, after, launch.until_ns) if verdict or failure else None,
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


def _left_behind(one: RoundState, launch: LaunchState, end: e.JobEnded | None) -> str:
    """Say that the job went on without a node that stood still: it knows no other cause."""
    stood = [event for event in every(launch.remarks, e.AgentPaused) if event.round == one.number]
    if not stood or end is None or end.last_round <= one.number:
        return ""
    return f"the launcher stood still for {stood[-1].seconds:.1f} s: the job went on without it"


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


def _lost(rounds: Sequence[RoundSummary]) -> tuple[int, int]:
    """Return the time lost in restarts and the number of restarts whose time is not known."""
    lost_ns = untimed = 0
    for one in rounds[:-1]:
        if one.phases is None or one.phases.total_ns is None:
            untimed += 1
            continue
        lost_ns += one.phases.total_ns
        if one.verdict is not None and one.verdict.kind == "hang":
            lost_ns += round((one.verdict.limit_s or 0) * _NS)
    return lost_ns, untimed


def _notes(launch: LaunchState) -> list[str]:
    sums: dict[type[e.Event], dict[str, float]] = {
        e.AgentPaused: {"seconds": launch.paused_s},
        e.EventsLost: {"count": launch.lost},
    }
    told: list[e.Event] = []
    for kind in _NOTED:
        events = every(launch.remarks, kind)
        if events and kind in sums:  # of several the sum counts
            events = [msgspec.structs.replace(events[-1], **sums[kind])]
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


def job_outcome(launches: Iterable[RunSummary]) -> JobOutcome | None:
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
    # Whoever had ended before the last launcher started was gone, or belongs to an earlier job.
    ends = [each for each in ended if each[0] >= last_start]
    if not ends:
        return None
    for outcome in FOR_ALL:
        for _, launch in ends:
            if launch.outcome == outcome:
                return _of(launch)
    if others_run and all(has_left(launch) for _, launch in ends):
        return None
    for_all = [each for each in ends if not each[1].alone]
    if any(launch.outcome == "failed" for _, launch in for_all):
        ends = for_all  # a node that was cut off may have ended later, and knows less
    return _of(max(ends, key=lambda each: each[0])[1])


def has_left(launch: RunSummary) -> bool:
    """Tell whether a launch ended by itself: the job may have gone on without its node."""
    return launch.alone or launch.outcome in _LEFT


def _of(launch: RunSummary) -> JobOutcome:
    assert launch.exit_code is not None
    return JobOutcome(launch.outcome, launch.exit_code, launch.reason, launch.node)
