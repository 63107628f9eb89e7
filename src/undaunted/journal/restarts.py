"""From events to rounds and the time of each phase of each restart. Pure functions.

A milestone that is not in the journal is None, and so is every phase that begins or ends with it.
All input is the events of one launch on one node, so that all times are of one clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.base.text import count, format_duration
from undaunted.journal.checkpoints import Checkpoints, Told, checkpoints, told_of
from undaunted.journal.events import (
    AgentPaused,
    AttributionResult,
    ControlRequested,
    Decision,
    Event,
    EventsLost,
    EvidenceCollected,
    FailureDetected,
    JobEnded,
    JobStarted,
    JournalOpened,
    MemoryReclaimed,
    NodeChecked,
    RankExited,
    RankMilestone,
    RoundProgress,
    RoundStarted,
    RoundStopped,
    SignalReceived,
    StopRequested,
    TemplateLost,
    Verdict,
    WorkersSpawned,
)
from undaunted.journal.goodput import Account, Times, account
from undaunted.journal.inprocess import InProcessRestart, inprocess_restarts
from undaunted.journal.query import by_round, every, first, node_of, time_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_NS = 1_000_000_000


class Phases(msgspec.Struct, kw_only=True, frozen=True):
    """How long each part of getting over one failure took, in nanoseconds; None = not recorded.

    Attributes:
        detect_ns: from when it happened to when the agent noticed.
        evidence_ns: from there until stacks and process states were gathered.
        verdict_ns: from the evidence (from the detection where none was needed) to the verdict.
            After a crash this goes on while the ranks are being stopped.
        decide_ns: from the last of these three before it, to the decision.
        stop_ns: from the first signal to the ranks until no process of the round was left.
        spawn_ns: from there until all workers of the next round existed.
        first_line_ns: from there until the user's program had begun on every rank.
        first_step_ns: from there until every rank had called ``undaunted.step``.
        total_ns: from when it happened (noticed, where nobody knows) until the user's program had
            begun on every rank.
        total_to_step_ns: the same until every rank had called ``undaunted.step``.
    """

    detect_ns: int | None = None
    evidence_ns: int | None = None
    verdict_ns: int | None = None
    decide_ns: int | None = None
    stop_ns: int | None = None
    spawn_ns: int | None = None
    first_line_ns: int | None = None
    first_step_ns: int | None = None
    total_ns: int | None = None
    total_to_step_ns: int | None = None


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
    verdict: Verdict | None = None
    iterations: list[int] = []
    last_iteration: int | None = None
    exits: list[RankExited] = []
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
    lost_ns: int = 0
    untimed_restarts: int = 0
    times: Times = msgspec.field(default_factory=Times)
    goodput: float | None = None
    log_dir: str = ""
    rounds: list[RoundSummary] = []
    checkpoints: Checkpoints | None = None
    notes: list[str] = []


def summarize(
    events: Sequence[Event],
    *,
    running: bool | None = None,
    spent: Account | None = None,
    told: Told | None = None,
) -> RunSummary:
    """Return the summary of one launch (see ``Journal.launches``).

    Args:
        events: of the launch.
        running: whether its launcher still runs, None = not known.
        spent: where its time went, if more is known about that than its events tell.
        told: what its ranks have told of checkpoints, if that is known already.
    """
    opened = first(events, JournalOpened) or JournalOpened(t=0)
    job = first(events, JobStarted)
    end = first(events, JobEnded)
    if spent is None:
        spent = account(events)
    rounds = _rounds(events, end, spent)
    lost_ns, untimed = _lost(rounds)
    return RunSummary(
        node=node_of(events),
        run_id=job.run_id if job else "",
        argv=job.argv if job else [],
        nproc_per_node=job.nproc_per_node if job else 0,
        max_restarts=job.max_restarts if job else 0,
        boot_id=opened.boot_id,
        pid=opened.pid,
        started_wall=job.wall if job else None,
        duration_ns=_between(time_of(job), time_of(end)),
        outcome=end.outcome if end else "",
        running=None if end else running,
        exit_code=end.exit_code if end else None,
        reason=end.reason if end else "",
        alone=bool(end and end.alone),
        restarts=max(0, len(rounds) - 1),
        lost_ns=lost_ns,
        untimed_restarts=untimed,
        times=spent.total,
        goodput=spent.goodput,
        log_dir=job.log_dir if job else "",
        rounds=rounds,
        checkpoints=checkpoints(told or told_of(events), spent.total.total_ns),
        notes=_notes(events),
    )


def _rounds(events: Sequence[Event], end: JobEnded | None, spent: Account) -> list[RoundSummary]:
    by_number = by_round(events)
    numbers = list(by_number)
    rounds = []
    for number, following in zip(numbers, [*numbers[1:], None], strict=False):
        after = [] if following is None else by_number[following]
        one = _round(number, by_number[number], after, None if after else end)
        rounds.append(msgspec.structs.replace(one, times=spent.rounds[number]))
    return rounds


def _round(
    number: int, events: Sequence[Event], after: Sequence[Event], end: JobEnded | None
) -> RoundSummary:
    started = first(events, RoundStarted)
    spawned = first(events, WorkersSpawned)
    stopped = first(events, RoundStopped)
    verdict = first(events, Verdict)
    failure = first(events, FailureDetected)
    evidence = first(events, EvidenceCollected)
    steps = [m.iteration for m in every(events, RankMilestone) if m.name == "first_step"]
    return RoundSummary(
        round=number,
        started_wall=started.wall if started else None,
        duration_ns=_between(time_of(started), time_of(stopped or end)),
        ranks=started.ranks if started else [],
        world_size=started.world_size if started else 0,
        worker_start=spawned.mode if spawned else "",
        outcome=_outcome(events, verdict or failure, end),
        cause=_cause(events, verdict, failure),
        verdict=verdict,
        iterations=sorted({i for i in steps if i is not None}),
        last_iteration=max((p.last_iteration for p in every(events, RoundProgress)), default=None),
        exits=every(events, RankExited),
        stacks=(verdict.stacks if verdict else "") or (evidence.path if evidence else ""),
        phases=_phases(events, after) if verdict or failure else None,
        inprocess=inprocess_restarts(events),
    )


def _outcome(
    events: Sequence[Event], failed: Verdict | FailureDetected | None, end: JobEnded | None
) -> str:
    if failed is not None:
        return failed.kind
    if end is not None and end.outcome == "finished":
        return "finished"
    return "stopped" if first(events, StopRequested) or first(events, RoundStopped) else ""


def _cause(
    events: Sequence[Event], verdict: Verdict | None, failure: FailureDetected | None
) -> str:
    """Return the best explanation the journal has."""
    if verdict is not None:
        return verdict.line
    if failure is not None:
        who = f" of rank {failure.rank}" if failure.rank >= 0 else ""
        return f"{failure.kind}{who}: {failure.detail}" if failure.detail else failure.kind + who
    if (stop := first(events, StopRequested)) is not None:
        return stop.reason
    if (asked := first(events, ControlRequested)) is not None:
        return f"rank {asked.rank} requests {asked.action}: {asked.description}"
    if (signal := first(events, SignalReceived)) is not None:
        return f"the launcher received {signal.signal}"
    return ""


def _phases(events: Sequence[Event], after: Sequence[Event]) -> Phases:
    failures = every(events, FailureDetected)
    happened = min((f.since_ns for f in failures if f.since_ns is not None), default=None)
    detected = time_of(first(events, FailureDetected))
    evidence = time_of(first(events, EvidenceCollected))
    verdict = time_of(first(events, Verdict))
    decided = time_of(first(events, Decision))
    stopped = time_of(first(events, RoundStopped))
    spawned = time_of(first(after, WorkersSpawned))
    first_line = last_rank(after, "first_line")
    first_step = last_rank(after, "first_step")
    known = [t for t in (detected, evidence, verdict) if t is not None]
    before_decision = [t for t in known if decided is not None and t <= decided]
    began = detected if happened is None else happened
    return Phases(
        detect_ns=_between(happened, detected),
        evidence_ns=_between(detected, evidence),
        verdict_ns=_between(detected if evidence is None else evidence, verdict),
        decide_ns=_between(max(before_decision, default=None), decided),
        stop_ns=_between(time_of(first(events, StopRequested)), stopped),
        spawn_ns=_between(stopped, spawned),
        first_line_ns=_between(spawned, first_line),
        first_step_ns=_between(first_line, first_step),
        total_ns=_between(began, first_line),
        total_to_step_ns=_between(began, first_step),
    )


def last_rank(events: Sequence[Event], name: str) -> int | None:
    """Return when the last rank of the round passed a milestone; None unless all did."""
    started = first(events, RoundStarted)
    passed: dict[int, int] = {}
    for milestone in every(events, RankMilestone):
        if milestone.name == name:
            passed.setdefault(milestone.rank, milestone.at_ns)
    if started is None or not started.ranks or not set(started.ranks) <= passed.keys():
        return None
    return max(passed[rank] for rank in started.ranks)


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


def _notes(events: Sequence[Event]) -> list[str]:
    notes = [f"workers started fresh: {lost.reason}" for lost in every(events, TemplateLost)]
    if paused := every(events, AgentPaused):
        seconds = sum(pause.seconds for pause in paused)
        notes.append(f"the launcher itself did not run for {seconds:.1f} s; deadlines were moved")
    if lost := every(events, EventsLost):
        missing = count(sum(one.count for one in lost), "event")
        notes.append(f"{missing} missing in the journal: {lost[-1].reason}")
    for stopped in every(events, RoundStopped):
        if stopped.unkillable:
            pids = ", ".join(map(str, stopped.unkillable))
            notes.append(f"processes that could not be killed in round {stopped.round}: {pids}")
    for wait in every(events, MemoryReclaimed):
        if wait.held:
            took = format_duration(wait.duration_ns / _NS)
            notes.append(f"after round {wait.round}, {took} in vain for GPU memory: {wait.held}")
    for result in every(events, AttributionResult):
        advice = f" (it recommends {result.action})" if result.action else ""
        notes.append(f"attribution of round {result.round}{advice}: {result.text}")
    end = first(events, JobEnded)
    notes += [
        f"the node was found unhealthy: {checked.problem}"
        for checked in every(events, NodeChecked)
        if checked.problem and (end is None or checked.problem not in end.reason)
    ]
    return notes


def _between(start: int | None, end: int | None) -> int | None:
    """Return the time between, at least 0: a rank may run before the agent knows it exists."""
    return None if start is None or end is None else max(0, end - start)
