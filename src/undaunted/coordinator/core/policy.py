"""The job policy: one deterministic state machine for the whole job.

Events come from node agents, commands go to them. There is no clock, socket or thread in here, so
that the same code runs inside a single agent, behind a server, and in a simulator.

States::

    FORMING   waiting for the nodes of the first round
    RUNNING   a round runs
    STOPPING  every node of the round has been told to stop; `_after` says what follows
    ENDED     the outcome is decided and sent; nothing changes it

Events of a round that is over are stale and ignored. Whatever arrives in ENDED is ignored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from undaunted.coordinator.core.progress import NO_ITERATIONS, Iterations, ProgressTracker

# SIGTERM to SIGKILL when nothing is lost by being quick: a peer is dead or hung, so the others
# wait in communication, where a Python-level SIGTERM handler cannot run.
GRACE_AFTER_FAILURE_S = 2.0
# The same when the ranks are healthy and may want to save something.
GRACE_ON_REQUEST_S = 15.0


class Outcome(enum.Enum):
    """How a job ends; the value is the launcher's exit code (see docs/exit-codes.md)."""

    FINISHED = ("finished", 0)
    FAILED = ("failed", 1)
    EXCLUDED = ("excluded", 1)
    PREEMPTED = ("preempted", 75)
    NO_RESTART = ("no_restart", 93)

    @property
    def label(self) -> str:
        """The name used in the journal."""
        return self.value[0]

    @property
    def exit_code(self) -> int:
        """The launcher's exit code."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """What the job policy needs to know (progress: see `ProgressTracker`). None = by cause."""

    min_nodes: int = 1
    max_restarts: int = 0
    max_no_progress_cycles: int = 3
    min_progress_iterations: int = 1
    stop_timeout_s: float | None = None
    term_timeout_s: float = 1800.0


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node offers ``slots`` ranks."""

    node: str
    slots: int


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A rank of the node crashed or hangs, or its workers could not be started."""

    node: str
    round: int
    detail: str


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """Every rank of the node exited with 0."""

    node: str
    round: int


@dataclass(frozen=True, slots=True)
class NodeStopped:
    """No process of the round is left on the node. ``all_ok``: every rank had exited with 0.

    ``iterations``: how far the round came.
    """

    node: str
    round: int
    all_ok: bool = False
    unkillable: tuple[int, ...] = ()
    iterations: Iterations = NO_ITERATIONS


@dataclass(frozen=True, slots=True)
class NodeUnhealthy:
    """A check of the node has failed, before or in a round (-1: before the first)."""

    node: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """A rank asked to end the workload for good, or ``by`` names who did."""

    node: str
    round: int
    description: str
    by: str = "a rank"


@dataclass(frozen=True, slots=True)
class ExclusionRequested:
    """A rank asked to go on without its node."""

    node: str
    round: int
    description: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """The launcher of a node was told by a signal to stop."""

    node: str
    signal: int
    signal_name: str


Event = (
    NodeJoined
    | NodeFailed
    | NodeFinished
    | NodeStopped
    | NodeUnhealthy
    | ShutdownRequested
    | ExclusionRequested
    | Preempted
)


# --- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start a round on ``node``: its ranks are ``first_rank`` .. ``first_rank + slots - 1``."""

    node: str
    round: int
    group_rank: int
    group_world_size: int
    first_rank: int
    slots: int
    world_size: int
    max_restarts: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the round on ``node``: ``signal`` now, SIGKILL after ``grace_s``."""

    node: str
    round: int
    reason: str
    grace_s: float
    signal: int = 15


@dataclass(frozen=True, slots=True)
class Decided:
    """For the journal and the user: ``restart`` or ``end``, and why. The last of a round holds."""

    round: int
    action: str
    reason: str
    restarts_left: int


@dataclass(frozen=True, slots=True)
class Remark:
    """A line for the user, which changes nothing."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over for ``node``."""

    node: str
    outcome: Outcome
    reason: str


Command = Start | Stop | Decided | Remark | End


class State(enum.Enum):
    """See the module's documentation."""

    FORMING = enum.auto()
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class _Member:
    slots: int
    finished: bool = False
    stopped: bool = False
    all_ok: bool = False
    iterations: Iterations = NO_ITERATIONS


@dataclass(frozen=True, slots=True)
class _Ending:
    """What follows once every node has stopped; None in `JobPolicy._after` means a restart."""

    outcome: Outcome
    reason: str
    unless_all_ok: bool = False


@dataclass(slots=True)
class JobPolicy:
    """See the module's documentation. Feed events to `handle`, carry out what it returns."""

    config: PolicyConfig
    state: State = State.FORMING
    round: int = -1
    restarts_used: int = 0
    _members: dict[str, _Member] = field(default_factory=dict)
    _after: _Ending | None = None
    _signals: set[int] = field(default_factory=set)  # what the ranks of this round were told
    _progress: ProgressTracker = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count rounds without progress."""
        c = self.config
        limits = (c.max_no_progress_cycles, c.min_progress_iterations)
        self._progress = ProgressTracker(*limits, max_restarts=c.max_restarts)

    @property
    def restarts_left(self) -> int:
        """Restarts the job may still take."""
        return max(0, self.config.max_restarts - self.restarts_used)

    def handle(self, event: Event) -> list[Command]:
        """Take one event; return the commands it causes, in order."""
        if self.state is State.ENDED:
            return []
        match event:
            case NodeJoined():
                return self._joined(event)
            case Preempted():
                return self._preempted(event)
            case NodeUnhealthy() if self.state is State.FORMING:
                return self._unhealthy(event)
        if event.node not in self._members or event.round != self.round:
            return []  # stale, or from a stranger
        match event:
            case NodeFailed():
                return self._failed(event)
            case NodeFinished():
                return self._finished(event)
            case NodeStopped():
                return self._stopped(event)
            case NodeUnhealthy():
                return self._unhealthy(event)
            case ShutdownRequested():
                return self._end_on_request(event, Outcome.NO_RESTART, "a shutdown")
            case ExclusionRequested():
                return self._end_on_request(event, Outcome.EXCLUDED, "its node to be excluded")

    # --- one method per event -------------------------------------------------------------------

    def _joined(self, event: NodeJoined) -> list[Command]:
        if self.state is not State.FORMING or event.node in self._members:
            return []
        self._members[event.node] = _Member(slots=event.slots)
        if len(self._members) < self.config.min_nodes:
            return []
        return self._start_round()

    def _failed(self, event: NodeFailed) -> list[Command]:
        if self.state is not State.RUNNING:
            return []  # the round is being stopped already
        if self.restarts_left == 0:
            budget = self.config.max_restarts
            why = f"no restart is left of {budget}" if budget else "--max-restarts is 0"
            ending = _Ending(Outcome.FAILED, f"{event.detail}; {why}")
            return self._stop_round(event.detail, ending)
        self.restarts_used += 1
        return self._stop_round(event.detail, None)

    def _finished(self, event: NodeFinished) -> list[Command]:
        if self.state is not State.RUNNING:
            return []
        self._members[event.node].finished = True
        if not all(member.finished for member in self._members.values()):
            return []
        ending = _Ending(Outcome.FINISHED, "every rank exited with 0")
        return self._stop_round("the work is done", ending, grace_s=GRACE_AFTER_FAILURE_S)

    def _stopped(self, event: NodeStopped) -> list[Command]:
        member = self._members[event.node]
        member.stopped, member.all_ok, member.iterations = True, event.all_ok, event.iterations
        if self.state is not State.STOPPING or not all(m.stopped for m in self._members.values()):
            return []
        return self._restart() if self._after is None else self._end(self._after)

    def _unhealthy(self, event: NodeUnhealthy) -> list[Command]:
        reason = f"node {event.node} is unhealthy: {event.reason}"
        ending = _Ending(Outcome.EXCLUDED, reason)
        if self.state is State.RUNNING:
            return self._stop_round(reason, ending)
        if self.state is State.FORMING:
            return self._end(ending, event.node)
        if self._after is not None:
            return []
        self._after = ending
        self.restarts_used -= 1  # the one that does not take place
        return [Decided(self.round, "end", reason, self.restarts_left)]

    def _end_on_request(
        self, event: ShutdownRequested | ExclusionRequested, outcome: Outcome, what: str
    ) -> list[Command]:
        said = f": {event.description}" if event.description else ""
        by = event.by if isinstance(event, ShutdownRequested) else "a rank"
        reason = f"{by} on node {event.node} asked for {what}{said}"
        ending = _Ending(outcome, reason)
        if self.state is State.RUNNING:
            return self._stop_round(reason, ending, grace_s=self._grace(GRACE_ON_REQUEST_S))
        return self._instead_of_restart(ending)

    def _preempted(self, event: Preempted) -> list[Command]:
        reason = f"the launcher on node {event.node} received {event.signal_name}"
        ending = _Ending(Outcome.PREEMPTED, reason, unless_all_ok=True)
        if self.state is State.RUNNING:
            return self._stop_round(
                reason, ending, grace_s=self.config.term_timeout_s, signal=event.signal
            )
        if self.state is State.STOPPING:
            commands = self._instead_of_restart(ending)
            return commands + self._tell_too(reason, event.signal)
        return self._end(ending, event.node)

    # --- leaves ---------------------------------------------------------------------------------

    def _restart(self) -> list[Command]:
        """Start the next round, unless the job does not come any further."""
        seen = [member.iterations for member in self._members.values()]
        reason = self._progress.round_over(self.round, seen)
        if reason:
            self.restarts_used -= 1  # the one that does not take place
            decided = Decided(self.round, "end", reason, self.restarts_left)
            return [decided, *self._end(_Ending(Outcome.NO_RESTART, reason))]
        remarks: list[Command] = [Remark(text) for text in (self._progress.remark(seen),) if text]
        return remarks + self._start_round()

    def _instead_of_restart(self, ending: _Ending) -> list[Command]:
        """The round is being stopped already: do not start another one after it."""
        if self._after is None:
            self._after = ending
        return []

    def _tell_too(self, reason: str, signal: int) -> list[Command]:
        """Pass another kind of signal on to ranks that are being stopped; their grace goes on.

        Not the same once more: it would interrupt what a handler does about the first.
        """
        if signal in self._signals:
            return []
        self._signals.add(signal)
        grace_s = self.config.term_timeout_s
        return [
            Stop(node, self.round, reason, grace_s, signal)
            for node, member in self._members.items()
            if not member.stopped
        ]

    def _start_round(self) -> list[Command]:
        self.round += 1
        self.state = State.RUNNING
        self._after = None
        self._signals.clear()
        world_size = sum(member.slots for member in self._members.values())
        commands: list[Command] = []
        first_rank = 0
        for group_rank, (node, member) in enumerate(self._members.items()):
            member.finished = member.stopped = member.all_ok = False
            commands.append(
                Start(
                    node=node,
                    round=self.round,
                    group_rank=group_rank,
                    group_world_size=len(self._members),
                    first_rank=first_rank,
                    slots=member.slots,
                    world_size=world_size,
                    max_restarts=self.config.max_restarts,
                )
            )
            first_rank += member.slots
        return commands

    def _stop_round(
        self, reason: str, after: _Ending | None, *, grace_s: float | None = None, signal: int = 15
    ) -> list[Command]:
        self.state = State.STOPPING
        self._after = after
        self._signals.add(signal)
        if grace_s is None:
            grace_s = self._grace(GRACE_AFTER_FAILURE_S)
        action = "restart" if after is None else "end"
        why = reason if after is None else after.reason
        commands: list[Command] = [Decided(self.round, action, why, self.restarts_left)]
        commands += [
            Stop(node, self.round, reason, grace_s, signal)
            for node, member in self._members.items()
            if not member.stopped
        ]
        return commands

    def _grace(self, by_cause_s: float) -> float:
        return by_cause_s if self.config.stop_timeout_s is None else self.config.stop_timeout_s

    def _end(self, ending: _Ending, *others: str) -> list[Command]:
        """End the job, also for nodes that have not joined."""
        self.state = State.ENDED
        all_ok = bool(self._members) and all(member.all_ok for member in self._members.values())
        if ending.unless_all_ok and all_ok:
            reason = f"{ending.reason}, and every rank exited with 0"
            ending = _Ending(Outcome.FINISHED, reason)
        nodes = dict.fromkeys((*self._members, *others))
        return [End(node, ending.outcome, ending.reason) for node in nodes]
