"""The model of a job, from the journals of all its nodes: values, and sums of their fields.

All moments that end in ``_ns`` and are called ``began``, ``ended``, ``start`` or ``end`` are on the
axis of the job: nanoseconds since its first launcher began. Rank-time is time multiplied by the
number of ranks that spent it.
"""

from __future__ import annotations

import msgspec

from undaunted.journal.checkpoints import Checkpoints  # noqa: TC001 - msgspec looks it up
from undaunted.journal.events import (  # noqa: TC001 - as above
    AgentPaused,
    RankExited,
    RoundAdvised,
    Verdict,
)
from undaunted.journal.goodput import Span, Times


class Phases(msgspec.Struct, kw_only=True, frozen=True):
    """The durations of the parts of getting over one failure, in nanoseconds.

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
        total_ns: from when it happened (noticed, if that is unknown) until the user's program had
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
    """The restart of a function; durations in nanoseconds, None = not recorded.

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


class NodePart(msgspec.Struct, kw_only=True, frozen=True):
    """The part of one node in a round.

    Attributes:
        node: its name.
        launch: index in ``JobSummary.launches``.
        round: its number.
        began_ns: the node began with its part.
        stopped_ns: no process was left; None = not recorded.
        started_wall: Unix time in seconds.
        duration_ns: until no process was left, or the job ended; None if neither is recorded.
        ranks: global ranks of the node.
        world_size: ranks on all nodes.
        worker_start: ``warm`` or ``fresh``, "" if no worker was started.
        outcome: ``finished``, ``crash``, ``hang`` or ``spawn`` (the kind of failure), ``stopped``
            (on request or by a signal), or "" = unknown.
        cause: one line: the verdict or what else ended the round.
        verdict: the verdict, if there was one.
        advised: the best action after it, None = it did not fail, or there is no advice.
        pause: the line about a pause before the next round, "" = there was none.
        iterations: first iteration of the ranks that took part, lowest first.
        last_iteration: the highest iteration begun, None = none was begun or recorded.
        exits: how the processes of the ranks ended.
        pauses: in which the agent stood still, in order.
        stacks: the file of the full evidence.
        phases: how long each part of the restart took; None if the round did not fail.
        inprocess: restarts inside of the processes of the round.
        times: where the time of the round went, until the next one began; not multiplied by ranks.
    """

    node: str = ""
    launch: int = 0
    round: int
    began_ns: int = 0
    stopped_ns: int | None = None
    started_wall: float | None = None
    duration_ns: int | None = None
    ranks: list[int] = []
    world_size: int = 0
    worker_start: str = ""
    outcome: str = ""
    cause: str = ""
    verdict: Verdict | None = None
    advised: RoundAdvised | None = None
    pause: str = ""
    iterations: list[int] = []
    last_iteration: int | None = None
    exits: list[RankExited] = []
    pauses: list[AgentPaused] = []
    stacks: str = ""
    phases: Phases | None = None
    inprocess: list[InProcessRestart] = []
    times: Times = msgspec.field(default_factory=Times)

    @property
    def lost_ns(self) -> int | None:
        """Until the program ran again, and after a hang its limit; None = not known."""
        if self.phases is None or self.phases.total_ns is None:
            return None
        hang = self.verdict is not None and self.verdict.kind == "hang"
        limit_s = self.verdict.limit_s if self.verdict is not None and hang else None
        return self.phases.total_ns + round((limit_s or 0) * 1_000_000_000)


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """The first failure of a round.

    Attributes:
        kind: ``crash``, ``hang``, ``spawn`` (workers could not be started) or ``lost`` (the
            launcher or its machine).
        node: which node, "" if unknown.
        rank: which rank, -1 = none.
        line: who failed, with what.
        limit_ns: of a hang: the limit that was passed; otherwise None.
    """

    kind: str
    node: str = ""
    rank: int = -1
    line: str = ""
    limit_ns: int | None = None


class JobRound(msgspec.Struct, kw_only=True, frozen=True):
    """One round of the job, on all nodes that took part.

    Attributes:
        attempt: which of the job's launches by a scheduler or user, from 0.
        round: its number in that attempt.
        world_size: ranks on all nodes.
        began_ns: the first node began with it.
        stopped_ns: the last node had stopped, or the next round began without it; None = neither
            is recorded of any node.
        outcome: ``finished``, ``crash``, ``hang``, ``spawn``, ``lost``, ``stopped`` or "".
        cause: one line.
        failure: what ended it first; None if it did not fail.
        failed_ns: when that happened, None if unknown.
        advised: what was best done after it, None = it did not fail or nothing was said.
        pause: the line about a pause before the next round, "" = there was none.
        first_iteration: the lowest that a rank began with, None if unknown.
        last_iteration: the highest begun, None if unknown.
        lost_steps: steps it had completed that the next round did again; None if unknown.
        restart_ns: from the failure until the program ran on the last rank of all nodes; None
            unless both are known.
        times: rank-time of all nodes by class, until the next round began.
        spare_ns: rank-time of nodes that had no seat in it.
        parts: by node, in the order of ranks.
    """

    attempt: int
    round: int
    world_size: int
    began_ns: int
    stopped_ns: int | None
    outcome: str = ""
    cause: str = ""
    failure: Failure | None = None
    failed_ns: int | None = None
    advised: RoundAdvised | None = None
    pause: str = ""
    first_iteration: int | None = None
    last_iteration: int | None = None
    lost_steps: int | None = None
    restart_ns: int | None = None
    times: Times = msgspec.field(default_factory=Times)
    spare_ns: int = 0
    parts: list[NodePart] = []

    @property
    def failed_part(self) -> NodePart | None:
        """The part of the node that failed first; None = it is unknown, or has no journal."""
        node = self.failure.node if self.failure is not None else None
        return next((part for part in self.parts if part.node == node), None)

    @property
    def lost_ns(self) -> int | None:
        """As of a part, of the whole job."""
        limit_ns = self.failure.limit_ns if self.failure is not None else None
        return None if self.restart_ns is None else self.restart_ns + (limit_ns or 0)


class LaunchSummary(msgspec.Struct, kw_only=True, frozen=True):
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
        rounds: its parts of all rounds, by number.
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
    rounds: list[NodePart] = []
    checkpoints: Checkpoints | None = None
    notes: list[str] = []


class BootClock(msgspec.Struct, kw_only=True, frozen=True):
    """The place of one boot's monotonic clock on the axis of the job.

    Attributes:
        boot_id: of the machine, "" if unknown.
        nodes: whose launches were timed by it.
        offset_ns: what is added to its times to get moments on the axis.
        uncertainty_ns: how far that may be wrong, either way; None = nothing bounds it.
        method: ``reference`` (the axis is this clock), ``order`` (bounded by what must have
            happened before what), ``wall`` (by wall clocks, since nothing relates it to others) or
            ``start`` (not even those: it begins with the job).
        drifts: the bounds contradict each other, as clocks do that run at different rates;
            ``uncertainty_ns`` covers them all.
    """

    boot_id: str
    nodes: list[str]
    offset_ns: int
    uncertainty_ns: int | None
    method: str
    drifts: bool = False


class Failures(msgspec.Struct, kw_only=True, frozen=True):
    """The number of failures of the job.

    Attributes:
        count: rounds that a failure ended.
        by_kind: number by kind, see `Failure`.
        by_node: number by node, of those whose node is known.
        by_rank: number by rank, of those whose rank is known.
        mttf_ns: mean time to failure: how long rounds ran until their failure or end, by
            ``count``; None without a failure.
        in_process: restarts inside of processes, which end no round.
    """

    count: int = 0
    by_kind: dict[str, int] = {}
    by_node: dict[str, int] = {}
    by_rank: dict[int, int] = {}
    mttf_ns: int | None = None
    in_process: int = 0


class Cost(msgspec.Struct, kw_only=True, frozen=True):
    """The cost of a job, at a price per hour of one rank.

    Attributes:
        price: of one rank for an hour.
        currency: as the user has written it, "" if not.
        total: of all rank-time, spare nodes included.
        productive: of that, for productive time.
        by_class: of each class of `Times` that is not empty (``productive``, ...), and ``spare``.
    """

    price: float
    currency: str
    total: float
    productive: float
    by_class: dict[str, float]


class JobSummary(msgspec.Struct, kw_only=True, frozen=True):
    """A job on all its nodes, over all its launches.

    Attributes:
        run_id: name of the run, of the last launch.
        argv: the user's program and its arguments, of the last launch.
        nodes: names of all nodes, sorted.
        attempts: how often the job was launched, by a scheduler, say.
        world_size: ranks of the last round.
        started_wall: Unix time in seconds by the first launcher's clock, None if unknown.
        duration_ns: from the first launcher's start to the last one's end or last event.
        between_ns: of that, time between attempts, in which no launcher ran.
        outcome: as in ``JobEnded``; "" if no end is recorded.
        exit_code: of the job.
        reason: why it ended.
        restarts: rounds that were followed by another one, in all attempts.
        restarts_ordered: how many of them somebody has ordered, by ``undaunted ctl``.
        lost_steps: sum over the restarts; None if it is known of none.
        lost_ns: sum over the restarts of the time until the program ran again and, after hangs, of
            the limit that had to pass.
        times: rank-time of all seats by class.
        spare_ns: rank-time of nodes that had no seat.
        goodput: productive part of ``times``, 0 to 1; None if no rank called ``undaunted.step``.
        ettr: effective training time ratio: productive time of the mean rank by ``duration_ns``;
            None where ``goodput`` is.
        failures: how often it failed, and where.
        cost: None without a price.
        checkpoints: of all nodes; None if no rank has told of any.
        rounds: in the order in which they began.
        clocks: how clocks were related; one entry per boot.
        launches: each launch of each node, by node; oldest first.
        lanes: of each launch, in the same order: what it did when, on the axis of the job.
        slow: which ranks were slow, by how much and for how long; in ``notes``, too.
        other_runs: which runs of other names are counted as this job, or were left out; in
            ``notes``, too.
        notes: what a reader should know, one line each.
    """

    run_id: str = ""
    argv: list[str] = []
    nodes: list[str] = []
    attempts: int = 0
    world_size: int = 0
    started_wall: float | None = None
    duration_ns: int = 0
    between_ns: int = 0
    outcome: str = ""
    exit_code: int | None = None
    reason: str = ""
    restarts: int = 0
    restarts_ordered: int = 0
    lost_steps: int | None = None
    lost_ns: int = 0
    times: Times = msgspec.field(default_factory=Times)
    spare_ns: int = 0
    goodput: float | None = None
    ettr: float | None = None
    failures: Failures = msgspec.field(default_factory=Failures)
    cost: Cost | None = None
    checkpoints: Checkpoints | None = None
    rounds: list[JobRound] = []
    clocks: list[BootClock] = []
    launches: list[LaunchSummary] = []
    lanes: list[list[Span]] = []
    slow: list[str] = []
    other_runs: str = ""
    notes: list[str] = []
