"""What a job was, from the journals of all its nodes: values without behaviour.

All moments that end in ``_ns`` and are called ``began``, ``ended``, ``start`` or ``end`` are on the
axis of the job: nanoseconds since its first launcher began. Rank-time is time multiplied by the
number of ranks that spent it.
"""

from __future__ import annotations

import msgspec

from undaunted.journal.checkpoints import Checkpoints  # noqa: TC001 - msgspec looks it up
from undaunted.journal.events import RoundAdvised  # noqa: TC001 - as above
from undaunted.journal.goodput import Span, Times
from undaunted.journal.summary import RunSummary  # noqa: TC001 - as above


class BootClock(msgspec.Struct, kw_only=True, frozen=True):
    """How the monotonic clock of one boot of one machine was put on the axis of the job.

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


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """What ended a round first.

    Attributes:
        kind: ``crash``, ``hang``, ``spawn`` (workers could not be started) or ``lost`` (the
            launcher or its machine).
        node: which node, "" if unknown.
        rank: which rank, -1 = none.
        line: what is said about it.
        limit_ns: of a hang: the limit that was passed; otherwise None.
    """

    kind: str
    node: str = ""
    rank: int = -1
    line: str = ""
    limit_ns: int | None = None


class NodePart(msgspec.Struct, kw_only=True, frozen=True):
    """What one node had of a round.

    Attributes:
        node: its name.
        launch: index in ``JobSummary.launches``.
        ranks: its global ranks.
        began_ns: it began with its part.
        stopped_ns: none of its processes was left; None = not recorded.
        times: where its time went, not multiplied by ranks.
    """

    node: str
    launch: int
    ranks: list[int]
    began_ns: int
    stopped_ns: int | None
    times: Times


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
    first_iteration: int | None = None
    last_iteration: int | None = None
    lost_steps: int | None = None
    restart_ns: int | None = None
    times: Times = msgspec.field(default_factory=Times)
    spare_ns: int = 0
    parts: list[NodePart] = []


class Failures(msgspec.Struct, kw_only=True, frozen=True):
    """How often the job failed.

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
    """What the job cost, at a price per hour of one rank.

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
    launches: list[RunSummary] = []
    lanes: list[list[Span]] = []
    slow: list[str] = []
    other_runs: str = ""
    notes: list[str] = []
