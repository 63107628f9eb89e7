"""The node agent's life cycle: one state machine per node.

Events come from the shell (processes, pages, timers) and from the coordinator; commands are carried
out by the shell. No clock, process or file in here.

States::

    IDLE       no round; waiting for the coordinator
    SPAWNING   workers are being started
    RUNNING    workers run
    EXAMINING  a limit was passed; stacks are being gathered, here and on all other nodes
    FAILED     a failure has been reported; the coordinator decides
    FINISHED   every rank exited with 0; the coordinator decides
    STOPPING   the round is to end: ranks have been signalled, grace runs
    KILLING    SIGKILL has been sent to everything that is left
    CLEARING   nothing is left; the node is made ready for the next round

A rank that fails while others go on with the function that they have called together is *lost*:
that is no failure of the round as long as another rank lives, or has exited with 0. So is one that
is being started again and has not joined the others when all of them have exited with 0.

A rank that a signal has ended, or that has failed right after it got one or because such a rank is
gone, is *held*: the sender of that signal may be about to signal the launcher. The round stays
RUNNING for as long as that may take; if the launcher gets its signal, nothing has failed.

When ranks of another node are to blame for a hang, the coordinator may have this node go on: limits
count anew, EXAMINING or FAILED becomes RUNNING again, and what happened meanwhile is judged then.

Ranks that hang are signalled when the round is stopped, so that all nodes can be looked at before.

A round is left only through KILLING, so that no process of one round sees the next one, but for
helpers that clean up behind a rank (`helpers`). CLEARING is left out when no round follows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from undaunted.attribution.exits import signal_name

# How long siblings' exits and error records are collected before a crash is judged, unless every
# rank has ended sooner. Stopping the round does not wait for it.
SETTLE_S = 0.1
# How long a rank that has announced its exception may take to end by itself, printing its traceback
# and running its atexit handlers, before it gets the signal that its siblings get at once.
LINGER_S = 0.5
# How long a rank with a helper may take, after another rank has failed, to notice that by itself:
# it does in its next collective.
RAISE_S = 1.5
# How long ranks may save and end by themselves that got a signal of the program's, such as SIGUSR1,
# once one of them has ended by itself, with an exit code.
SAVE_S = 60.0
# How long it may take to know after which iteration ranks stop, before others get their signal; and
# how long a rank has, once another one has stopped and ended, to come to its session.
AGREE_S = 3.0
# How long a killed process may take to vanish before it is reported as unkillable (D state).
UNKILLABLE_AFTER_S = 10.0


# --- events -------------------------------------------------------------------------------------


class StartRound(msgspec.Struct, frozen=True):
    """The coordinator wants round ``round`` started with ``slots`` local ranks."""

    round: int
    slots: int


class WorkersSpawned(msgspec.Struct, frozen=True):
    """Every local rank is a process now."""


class SpawnFailed(msgspec.Struct, frozen=True):
    """The local ranks could not be started."""

    reason: str


class RankExited(msgspec.Struct, frozen=True):
    """A rank's process ended; ``code`` is its exit code, or minus the signal's number.

    ``others_go_on``: with the function that they have called together, so that a failure of this
    rank is none of the round. ``may_return``: a process in its place could join them. ``absent``:
    local ranks that have been started again and have not joined the others, as far as they live.
    ``awaits_s``: the sender of a signal to this rank, or to the peer that it has lost, may signal
    the launcher too within this time, and mean a stop.
    """

    local_rank: int
    code: int
    others_go_on: bool = False
    may_return: bool = False
    absent: frozenset[int] = frozenset()
    awaits_s: float = 0.0


class RankErrored(msgspec.Struct, frozen=True):
    """A rank recorded an unhandled exception; it is about to die.

    ``others_go_on``, ``awaits_s``: see `RankExited`.
    """

    local_rank: int
    detail: str
    others_go_on: bool = False
    awaits_s: float = 0.0


class LimitPassed(msgspec.Struct, frozen=True):
    """A rank passed a limit."""

    local_rank: int
    detail: str


class Gather(msgspec.Struct, frozen=True):
    """Somebody wants to know what the ranks do, and nothing else: another node, or the watch."""

    round: int


class LookByHand(msgspec.Struct, frozen=True):
    """A person wants to know what the ranks do, perhaps while they should stop; ends nothing.

    ``recordings``: also what their Flight Recorders hold, for which they need CPU time.
    """

    round: int
    recordings: bool


class EvidenceGathered(msgspec.Struct, frozen=True):
    """The evidence of `GatherEvidence` is there, about the ranks of ``round``."""

    round: int


class CrashUnclear(msgspec.Struct, frozen=True):
    """So far only ranks have failed that lost a peer; judge again when more is known."""


class HangJudged(msgspec.Struct, frozen=True):
    """Evidence of ``round`` has been judged: ``culprits`` are local ranks."""

    round: int
    culprits: tuple[int, ...]
    line: str


class GoOn(msgspec.Struct, frozen=True):
    """Another node is to blame for the hang in ``round``, for which ranks of this one wait."""

    round: int


class StopRound(msgspec.Struct, frozen=True):
    """The coordinator wants the round ended: ``signal`` now, SIGKILL after ``grace_s``.

    ``restart``: another round is to follow. ``agree``: nobody is signalled before `Agreed`.
    ``failed``: something has failed, perhaps a rank of this node before another one.
    ``spared``: local ranks that are not signalled for ``spared_s``, nor at all if they raise by
    then: they may end by themselves. See `RAISE_S` and `SAVE_S`.
    """

    round: int
    grace_s: float
    signal: int
    restart: bool = False
    agree: bool = False
    failed: bool = False
    spared: tuple[int, ...] = ()
    spared_s: float = 0.0


class Agreed(msgspec.Struct, frozen=True):
    """It is known how ranks stop: after the same iteration, those that ``ask``; or by a signal."""

    round: int
    ask: bool


class NoRestart(msgspec.Struct, frozen=True):
    """No round follows, whatever was planned: the launcher got a signal to stop."""


class NodeClear(msgspec.Struct, frozen=True):
    """The work of `ClearNode` is done. ``problem``: why this node can run no round, "" = fit."""

    round: int
    problem: str = ""


class TreeEmpty(msgspec.Struct, frozen=True):
    """No process of the round is left."""


class TimerFired(msgspec.Struct, frozen=True):
    """A timer set by `SetTimer` ran out. ``round`` is the round it was set in."""

    name: str
    round: int


class KillNow(msgspec.Struct, frozen=True):
    """The user insists (second Ctrl-C): no more grace."""


Event = (
    StartRound
    | WorkersSpawned
    | SpawnFailed
    | RankExited
    | RankErrored
    | LimitPassed
    | Gather
    | LookByHand
    | EvidenceGathered
    | CrashUnclear
    | HangJudged
    | GoOn
    | StopRound
    | Agreed
    | NoRestart
    | NodeClear
    | TreeEmpty
    | TimerFired
    | KillNow
)


# --- commands -----------------------------------------------------------------------------------


class Spawn(msgspec.Struct, frozen=True):
    """Start the workers of the round; answer with WorkersSpawned or SpawnFailed."""

    round: int


class CallOffSpawn(msgspec.Struct, frozen=True):
    """Nobody needs the workers any more: wait no longer than processes exist already.

    Answer to `Spawn` all the same.
    """


class Watch(msgspec.Struct, frozen=True):
    """Hold the ranks to their limits, or stop doing so. ``anew``: limits begin to count now."""

    on: bool
    anew: bool = False


class GoOnWithout(msgspec.Struct, frozen=True):
    """A rank is lost, and the round goes on."""

    local_rank: int
    detail: str


class StartAgain(msgspec.Struct, frozen=True):
    """Start a process in the place of a lost rank; if there is none to be had, `RankExited`."""

    local_rank: int


class GatherEvidence(msgspec.Struct, frozen=True):
    """Collect stacks and process states; answer with EvidenceGathered.

    ``by_hand``: nobody suspects a hang, so that nothing is written down. ``recordings``: ask for
    what Flight Recorders hold.
    """

    by_hand: bool = False
    recordings: bool = True


class JudgeHang(msgspec.Struct, frozen=True):
    """Say which rank hangs, after the evidence; answer with HangJudged."""


class ReportSuspected(msgspec.Struct, frozen=True):
    """Tell the coordinator that a limit was passed."""

    detail: str


class ReportEvidence(msgspec.Struct, frozen=True):
    """Tell the coordinator what was gathered last.

    ``gathered``: False = nothing was for this hang; what is there may be of an earlier one.
    """

    gathered: bool = True


class JudgeCrash(msgspec.Struct, frozen=True):
    """Say which rank crashed first and why.

    Unless it is the ``final`` time, answer CrashUnclear instead if only victims have been seen.
    """

    final: bool = True


class JudgeLateCrash(msgspec.Struct, frozen=True):
    """Say which rank crashed, if any did.

    A rank may have crashed just before the stop reached it; nothing was reported yet.
    """


class SignalRanks(msgspec.Struct, frozen=True):
    """Send ``signal`` to these ranks; ``agree``: but not to those that ask whether to stop."""

    local_ranks: tuple[int, ...]
    signal: int
    agree: bool = False


class SayLate(msgspec.Struct, frozen=True):
    """Tell the user that these ranks have not ended within the grace."""

    local_ranks: tuple[int, ...]
    grace_s: float


class SignalTree(msgspec.Struct, frozen=True):
    """Send ``signal`` to every process of the round; answer TreeEmpty once none is left."""

    signal: int


class EndOrphans(msgspec.Struct, frozen=True):
    """Kill what ranks that have ended have left behind, but for helpers.

    Loader workers of a dead rank hold its connections: its peers do not notice that it is gone.
    """


class PrepareClearing(msgspec.Struct, frozen=True):
    """`ClearNode` may follow: start what takes a while to start."""


class ClearNode(msgspec.Struct, frozen=True):
    """Make sure that the next round finds the node as it should be; answer with NodeClear."""

    round: int


class SetTimer(msgspec.Struct, frozen=True):
    """Answer with TimerFired(name) after ``delay_s``; replaces a timer of that name."""

    name: str
    delay_s: float


class ReportFailed(msgspec.Struct, frozen=True):
    """Tell the coordinator. ``kind`` is crash, hang, spawn, or signal: a stop, and no failure."""

    kind: str
    local_rank: int
    detail: str


class ReportFinished(msgspec.Struct, frozen=True):
    """Tell the coordinator that every rank exited with 0, but for ``lost`` ones."""

    lost: int = 0


class ReportStopped(msgspec.Struct, frozen=True):
    """Tell the coordinator that the round is over on this node.

    ``problem``: why this node can run no further round, "" = it can.
    """

    all_ok: bool
    unkillable: bool
    problem: str = ""


Command = (
    Spawn
    | CallOffSpawn
    | Watch
    | GoOnWithout
    | StartAgain
    | GatherEvidence
    | JudgeHang
    | JudgeCrash
    | JudgeLateCrash
    | SignalRanks
    | SayLate
    | SignalTree
    | EndOrphans
    | PrepareClearing
    | ClearNode
    | SetTimer
    | ReportSuspected
    | ReportEvidence
    | ReportFailed
    | ReportFinished
    | ReportStopped
)


# --- the machine --------------------------------------------------------------------------------


class State(enum.Enum):
    """See the module's documentation."""

    IDLE = enum.auto()
    SPAWNING = enum.auto()
    RUNNING = enum.auto()
    EXAMINING = enum.auto()
    FAILED = enum.auto()
    FINISHED = enum.auto()
    STOPPING = enum.auto()
    KILLING = enum.auto()
    CLEARING = enum.auto()


# In which a person may have the ranks looked at: there are some.
LOOKS_BY_HAND = {
    State.RUNNING,
    State.EXAMINING,
    State.FAILED,
    State.FINISHED,
    State.STOPPING,
}
_SIGNALS_THE_LINGERING = {State.RUNNING, State.EXAMINING, State.FAILED, State.STOPPING}
_SIGKILL = 9
_SIGTERM = 15


@dataclass(slots=True)
class Node:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        rank_termination_signal: sent to hung ranks.
        clearing_s: how long the node is waited for between two rounds; 0 = there is nothing to do.
        state: see the module's documentation.
        round: the round that runs, or the last one.
    """

    rank_termination_signal: int = _SIGKILL
    clearing_s: float = 0.0
    state: State = State.IDLE
    round: int = -1
    _slots: int = 0
    _exited: dict[int, int] = field(default_factory=dict)
    _lost: set[int] = field(default_factory=set)
    _crash_to_judge: bool = False
    _may_be_first: bool = False  # another node has failed, perhaps because of a rank of this one
    _gathering: bool = False  # evidence
    _by_hand: bool = False  # what is gathered, or was last, is for a person only
    _gather_again: bool = False  # once that is there
    _hung: bool = False  # what has failed is that a limit was passed
    _culprits: tuple[int, ...] = ()  # ranks that hang
    _errored: dict[int, str] = field(default_factory=dict)  # announced before a stop
    _unjudged: list[RankExited | RankErrored] = field(default_factory=list)  # seen meanwhile
    _held: list[RankExited | RankErrored] = field(default_factory=list)  # perhaps no failures
    _stop: StopRound | None = None  # the first; it may have to wait until the processes are known
    _asks: bool = False  # ranks stop after the same iteration
    _save: bool = False  # ranks may save as they stop, whether they ask or not
    _grace_s: float = 0.0  # of the stop that is under way
    _restart: bool = False  # another round follows
    _unkillable: bool = False
    _kills: bool = False  # the user insists: whatever is stopped is killed
    _look_again: bool = False  # nothing was left but a rank that was being started again

    @property
    def alive(self) -> tuple[int, ...]:
        """Local ranks whose processes have not ended."""
        return tuple(rank for rank in range(self._slots) if rank not in self._exited)

    @property
    def restarts(self) -> bool:
        """Return whether another round follows the one that ends."""
        return self._restart and not self._has_worked

    def handle(self, event: Event) -> list[Command]:  # noqa: C901, PLR0912 - one case per event
        """Take one event; return the commands it causes, in order."""
        match event:
            case StartRound():
                return self._start(event)
            case WorkersSpawned():
                return self._spawned()
            case SpawnFailed():
                return self._spawn_failed(event)
            case RankExited():
                return self._exited_rank(event)
            case RankErrored():
                return self._errored_rank(event)
            case LimitPassed():
                return self._limit_passed(event)
            case Gather():
                return self._gather(event)
            case LookByHand():
                return self._look_by_hand(event)
            case EvidenceGathered():
                return self._gathered(event)
            case CrashUnclear():
                self._crash_to_judge = self.state is not State.IDLE
                return []
            case HangJudged():
                return self._hang_judged(event)
            case GoOn():
                return self._go_on(event)
            case StopRound():
                return self._stop_round(event)
            case Agreed():
                return self._agreed(event)
            case NoRestart():
                return self._no_restart()
            case NodeClear():
                return self._node_clear(event)
            case TreeEmpty():
                return self._tree_empty()
            case TimerFired():
                return self._timer(event)
            case KillNow():
                return self._kill_now()

    # --- one method per event -------------------------------------------------------------------

    def _start(self, event: StartRound) -> list[Command]:
        if self.state is not State.IDLE or event.round <= self.round:
            return []
        self.round, self._slots = event.round, event.slots
        self._exited.clear()
        self._lost.clear()
        self._errored.clear()
        self._unjudged.clear()
        self._held.clear()
        self._crash_to_judge = self._may_be_first = self._gathering = self._hung = False
        self._by_hand = self._gather_again = False
        self._culprits = ()
        self._stop, self._asks = None, False
        self._restart = self._unkillable = self._look_again = False
        self.state = State.SPAWNING
        return [Spawn(event.round)]

    def _spawned(self) -> list[Command]:
        if self.state is not State.SPAWNING:
            return []
        self.state = State.RUNNING
        linger = [SetTimer("linger", LINGER_S)] if self._errored else []  # from now on
        if self._stop is not None:
            return [*linger, *self._begin_stop(self._stop)]
        return [Watch(on=True), *linger, *self._judge_what_was_seen()]

    def _judge_what_was_seen(self) -> list[Command]:
        """Judge what ranks did while this node could not: it was starting, or looked at a hang."""
        commands: list[Command] = []
        while self._unjudged and self.state is State.RUNNING:
            event = self._unjudged.pop(0)
            if isinstance(event, RankExited):
                commands += self._judge_exit(event)
            else:
                commands += self._judge_error(event)
        return commands

    def _spawn_failed(self, event: SpawnFailed) -> list[Command]:
        if self.state is not State.SPAWNING:
            return []
        # Whatever was started before the failure is in the tree and ends with it.
        self._slots = 0
        self._exited.clear()
        self.state = State.FAILED
        if self._stop is not None:
            return self._begin_stop(self._stop)
        return [ReportFailed("spawn", -1, event.reason)]

    def _exited_rank(self, event: RankExited) -> list[Command]:
        if self.state is State.IDLE or event.local_rank in self._exited:
            return []
        self._exited[event.local_rank] = event.code
        if event.others_go_on and event.code != 0:
            self._lost.add(event.local_rank)
        if event.absent.issuperset(self.alive) and 0 in self._exited.values():
            self._lost.update(self.alive)  # the others have finished without them
        if self.state is State.RUNNING:
            return self._judge_exit(event)
        self._unjudged.append(event)
        if self.alive and self.state is State.STOPPING and self._spared:
            return [EndOrphans()]
        if self.alive:
            return self._ended_while_others_stop(event) if self._agrees else []
        judge: list[Command] = self._judge_crash() if self._crash_to_judge else []
        if self._may_be_first and not self._lost and any(self._exited.values()):
            judge = [JudgeLateCrash()]
        again = self.state is State.KILLING and self._look_again
        return judge + (self._kill() if again or self.state is State.STOPPING else [])

    def _errored_rank(self, event: RankErrored) -> list[Command]:
        if self._agrees:
            failed = self._failed_while_it_stopped(event, event.detail)
            return [*failed, SetTimer("linger", LINGER_S)] if failed else []
        signalled = self.state is State.STOPPING and event.local_rank not in self._spared
        if signalled or self.state in {State.IDLE, State.KILLING, State.CLEARING}:
            return []  # it has the grace to end
        if event.local_rank in self._errored or event.local_rank in self._exited:
            return []
        self._errored[event.local_rank] = event.detail
        if self.state is State.STOPPING:
            return []
        if self.state is State.RUNNING:
            return self._judge_error(event)
        self._unjudged.append(event)
        return [SetTimer("linger", LINGER_S)]

    def _judge_error(self, event: RankErrored) -> list[Command]:
        linger = SetTimer("linger", LINGER_S)
        if event.others_go_on:
            return [linger]  # what becomes of the round is decided when it has ended
        if self._held or event.awaits_s > 0:
            return self._hold(event)
        return [linger, *self._crashed(event.local_rank, event.detail)]

    def _judge_exit(self, event: RankExited) -> list[Command]:
        local_rank, code = event.local_rank, event.code
        lost, detail = local_rank in self._lost, describe_exit(code)
        if code != 0 and not (lost and (self.alive or self._has_worked)):
            if self._held or event.awaits_s > 0:
                return self._hold(event)
            more = "; it was the last one that was left of its node" if lost else ""
            return self._crashed(local_rank, detail + more)
        detail = self._errored.get(local_rank, detail)
        commands: list[Command] = [GoOnWithout(local_rank, detail)] if lost else []
        if self._has_worked:
            self.state = State.FINISHED
            return [*commands, Watch(on=False), ReportFinished(len(self._lost))]
        return commands + self._replace(local_rank) if lost and event.may_return else commands

    def _hold(self, event: RankExited | RankErrored) -> list[Command]:
        """Wait for the launcher's signal before this is a failure, and what fails after it, too."""
        self._held.append(event)
        return [SetTimer("told", event.awaits_s)] if len(self._held) == 1 else []

    def _not_told(self) -> list[Command]:
        """The launcher has got no signal: what ranks have done is judged now."""
        self._unjudged[:0] = [msgspec.structs.replace(event, awaits_s=0.0) for event in self._held]
        self._held.clear()
        return self._judge_what_was_seen()

    def _replace(self, local_rank: int) -> list[Command]:
        """Have a lost rank come back: there are others that it could join."""
        self._lost.discard(local_rank)
        self._errored.pop(local_rank, None)
        del self._exited[local_rank]
        return [StartAgain(local_rank)]

    def _crashed(self, local_rank: int, detail: str) -> list[Command]:
        self.state = State.FAILED
        self._crash_to_judge = True
        commands: list[Command] = [
            Watch(on=False),
            SetTimer("settle", SETTLE_S),
            ReportFailed("crash", local_rank, detail),
        ]
        return commands if self.alive else commands + self._judge_crash()

    def _limit_passed(self, event: LimitPassed) -> list[Command]:
        if self.state is not State.RUNNING:
            return []
        self.state = State.EXAMINING
        return [Watch(on=False), ReportSuspected(event.detail), *self._look()]

    def _gather(self, event: Gather) -> list[Command]:
        if event.round != self.round:
            return []
        if self.state in {State.RUNNING, State.EXAMINING}:
            return self._look()
        return [ReportEvidence(gathered=self._hung)]

    def _look(self) -> list[Command]:
        """Gather evidence, once at a time."""
        if self._gathering:
            self._gather_again = self._by_hand
            return []
        self._gathering, self._by_hand = True, False
        return [GatherEvidence()]

    def _look_by_hand(self, event: LookByHand) -> list[Command]:
        if event.round != self.round or self.state not in LOOKS_BY_HAND or self._gathering:
            return []
        self._gathering = self._by_hand = True
        return [GatherEvidence(by_hand=True, recordings=event.recordings)]

    def _gathered(self, event: EvidenceGathered) -> list[Command]:
        if event.round != self.round:
            return []
        self._gathering = False
        if self._by_hand:
            again, self._gather_again = self._gather_again, False
            return self._look() if again else []
        judge = [JudgeHang()] if self.state is State.EXAMINING else []
        return [ReportEvidence(), *judge]

    def _hang_judged(self, event: HangJudged) -> list[Command]:
        if self.state is not State.EXAMINING or event.round != self.round:
            return []
        if self._has_worked:
            self.state = State.FINISHED  # it was slow, and the work is done meanwhile
            return [ReportFinished(len(self._lost))]
        self.state = State.FAILED
        self._hung, self._culprits = True, event.culprits
        first = event.culprits[0] if event.culprits else -1
        return [ReportFailed("hang", first, event.line)]

    def _go_on(self, event: GoOn) -> list[Command]:
        going_on = self.state in {State.RUNNING, State.EXAMINING} or (
            self.state is State.FAILED and self._hung
        )
        if event.round != self.round or not going_on:
            return []
        self.state = State.RUNNING
        self._hung, self._culprits = False, ()
        return [Watch(on=True, anew=True), *self._judge_what_was_seen()]

    def _stop_round(self, event: StopRound) -> list[Command]:
        if event.round != self.round:
            return []
        if self.state is State.CLEARING:
            return [] if event.restart else self._no_restart()
        self._restart, self._save = event.restart, event.agree
        if self.state is State.SPAWNING:
            self._stop = event  # the pids are not known yet
            # Ranks of other nodes may wait for these, to stop with them.
            return [] if event.agree and not self._kills else [CallOffSpawn()]
        if self.state is State.STOPPING:
            if self._stop is not None and not event.agree:
                self._stop = msgspec.structs.replace(self._stop, agree=False)
            signal = SignalRanks(self._not_leaving(), event.signal, event.agree)
            return [*self._shorten(event.grace_s), signal]
        if self.state in {State.IDLE, State.KILLING}:
            return []
        return self._begin_stop(event)

    def _agreed(self, event: Agreed) -> list[Command]:
        if event.round != self.round or self._stop is None or not self._stop.agree:
            return []
        signal, self._asks = self._stop.signal, event.ask
        if not event.ask:
            self._stop = msgspec.structs.replace(self._stop, agree=False)
        if not event.ask and self.state is State.SPAWNING:
            return [CallOffSpawn()]
        if event.ask or self.state is not State.STOPPING:
            return []
        return [SignalRanks(self._not_leaving(), signal)]

    def _tree_empty(self) -> list[Command]:
        if self.state not in {State.STOPPING, State.KILLING}:
            return []
        self._look_again = bool(self.alive)
        if self._look_again:
            return []
        return self._tree_gone(unkillable=False)

    def _no_restart(self) -> list[Command]:
        self._restart = False
        return self._round_over() if self.state is State.CLEARING else []

    def _node_clear(self, event: NodeClear) -> list[Command]:
        if self.state is not State.CLEARING or event.round != self.round:
            return []
        return self._round_over(event.problem)

    def _timer(self, event: TimerFired) -> list[Command]:
        if event.round != self.round:
            return []
        match event.name:
            case "settle":
                return self._judge_crash(final=False) if self._crash_to_judge else []
            case "told":
                return self._not_told()
            case "linger" if self.state in _SIGNALS_THE_LINGERING:
                ranks = self._errored.keys() - set(self._spared)
                return [SignalRanks(tuple(r for r in self.alive if r in ranks), _SIGTERM)]
            case "spared" if self.state is State.STOPPING and self._spared:
                return self._spare_no_more()
            case "grace" if self.state is State.STOPPING:
                return [*self._late(), *self._kill()]
            case "agree":
                return [] if self._asks else self._signal_who_never_asks()
            case "left":
                return self._signal_who_never_asks()
            case "unkillable" if self.state is State.KILLING:
                return self._tree_gone(unkillable=True)
            case "clearing" if self.state is State.CLEARING:
                return self._round_over()
        return []

    def _kill_now(self) -> list[Command]:
        self._kills = True  # the order to stop may not be here yet
        if self.state is State.SPAWNING and self._stop is not None:
            return [CallOffSpawn()] if self._stop.agree else []  # else that has been said
        if self.state is State.CLEARING:
            return self._round_over()
        return self._kill() if self.state is State.STOPPING else []

    # --- leaves ---------------------------------------------------------------------------------

    def _not_leaving(self) -> tuple[int, ...]:
        """Ranks that live and have not announced that they are about to end."""
        return tuple(rank for rank in self.alive if rank not in self._errored)

    def _ended_while_others_stop(self, event: RankExited) -> list[Command]:
        failed: list[Command] = []
        if event.code < 0:  # others are its own word for a stop
            failed = self._failed_while_it_stopped(event, describe_exit(event.code))
        # Who does not ask yet may be importing.
        return [*failed, SetTimer("left", AGREE_S)] if self._asks else failed

    def _failed_while_it_stopped(
        self, event: RankExited | RankErrored, detail: str
    ) -> list[Command]:
        """Nobody has signalled this rank: others may wait for it in vain, before they can save."""
        if event.local_rank in self._errored:
            return []
        self._errored[event.local_rank] = detail
        signalled = any(each.awaits_s > 0 for each in (event, *self._unjudged))
        return [ReportFailed("signal" if signalled else "crash", event.local_rank, detail)]

    def _late(self) -> list[Command]:
        """Ranks that were to save have not ended in time. After failures that is expected."""
        return [SayLate(self.alive, self._grace_s)] if self._save and self.alive else []

    def _signal_who_never_asks(self) -> list[Command]:
        """Where ranks were to agree: another one has left, or nothing was heard."""
        ranks = self._not_leaving()
        if not self._agrees or self._stop is None or not ranks:
            return []
        return [SignalRanks(ranks, self._stop.signal, agree=True)]

    def _spare_no_more(self) -> list[Command]:
        """Signal ranks that have not ended by themselves, and not raised."""
        assert self._stop is not None, "what is being stopped was to be stopped"
        ranks = tuple(rank for rank in self._not_leaving() if rank in self._spared)
        self._stop = msgspec.structs.replace(self._stop, spared=())
        return [SignalRanks(ranks, self._stop.signal)]

    def _shorten(self, grace_s: float) -> list[Command]:
        """A later order to stop may leave less time than the first, never more."""
        if grace_s >= self._grace_s:
            return []
        self._grace_s = grace_s
        return [SetTimer("grace", grace_s)]

    def _begin_stop(self, stop: StopRound) -> list[Command]:
        failed = self._not_told() if stop.failed else []  # so nobody stops the job
        unjudged = self.state in {State.RUNNING, State.EXAMINING} and self._stop is None
        self._may_be_first = unjudged and stop.failed
        self._unjudged += self._held
        self._held.clear()
        self.state = State.STOPPING
        self._stop, self._grace_s = stop, stop.grace_s
        if self._kills:
            return [*failed, Watch(on=False), *self._kill()]
        spared_s = stop.spared_s if self._spared else 0.0
        grace = SetTimer("grace", spared_s + stop.grace_s)
        commands: list[Command] = [*failed, Watch(on=False), grace]
        if self._errored and stop.agree:
            commands.append(SetTimer("linger", LINGER_S))  # nobody has signalled those yet
        if hung := tuple(rank for rank in self._culprits if rank not in self._exited):
            commands.append(SignalRanks(hung, self.rank_termination_signal))
        if self.alive and stop.agree:
            commands.append(SetTimer("agree", AGREE_S))
        elif self.alive:
            # Only the ranks: a DataLoader worker that gets SIGTERM would ruin the rank's last save.
            ranks = [rank for rank in self._not_leaving() if rank not in self._spared]
            commands.append(SignalRanks(tuple(ranks), stop.signal))
            if self._spared:
                commands += [EndOrphans(), SetTimer("spared", spared_s)]
        else:
            commands.append(SignalTree(_SIGTERM))
        return [*commands, PrepareClearing()] if self._clearing_follows else commands

    def _kill(self) -> list[Command]:
        self.state = State.KILLING
        return [SetTimer("unkillable", UNKILLABLE_AFTER_S), SignalTree(_SIGKILL)]

    def _judge_crash(self, *, final: bool = True) -> list[Command]:
        self._crash_to_judge = False
        return [JudgeCrash(final)]

    def _tree_gone(self, *, unkillable: bool) -> list[Command]:
        commands: list[Command] = self._judge_crash() if self._crash_to_judge else []
        self._unkillable = unkillable
        if not self._clearing_follows:
            return commands + self._round_over()
        self.state = State.CLEARING
        return [*commands, SetTimer("clearing", self.clearing_s), ClearNode(self.round)]

    @property
    def _spared(self) -> tuple[int, ...]:
        """See `StopRound`."""
        return () if self._stop is None else self._stop.spared

    @property
    def _agrees(self) -> bool:
        """Whether the round is being stopped, and ranks have not been signalled for that."""
        stop = self._stop
        return self.state is State.STOPPING and stop is not None and stop.agree

    @property
    def _clearing_follows(self) -> bool:
        return self.restarts and self.clearing_s > 0 and not self._kills

    @property
    def _has_worked(self) -> bool:
        """Whether all but the lost ones have ended, with 0."""
        codes = [code for rank, code in self._exited.items() if rank not in self._lost]
        return self._lost.issuperset(self.alive) and bool(codes) and not any(codes)

    def _round_over(self, problem: str = "") -> list[Command]:
        self.state = State.IDLE
        return [ReportStopped(self._has_worked, self._unkillable, problem)]


def describe_exit(code: int) -> str:
    """``exit code 3`` or ``killed by SIGKILL``, for a code as `RankExited` carries it."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
