"""Who leads is decided by a lease in etcd: one launcher's part in that. No clock, socket or thread.

States::

    LOOKING    it is not known who leads
    FOLLOWING  another launcher does
    CLAIMING   nobody does; this one tries to
    LEADING    this one does, while its lease lasts
    OVER       nothing is done any more

The lease is counted from when its renewal was asked for, which is earlier than etcd's own count: a
leader that cannot reach etcd stands down before another one can be elected.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from undaunted.coordinator.core import election
from undaunted.coordinator.protocol import Ledger

_NS = 1_000_000_000
_PAUSE_FIRST_S = 0.1  # before etcd is asked again; twice as long each time
_PAUSE_LONGEST_S = 1.0


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader's key in etcd.

    Attributes:
        address: where that launcher listens.
        incarnation: of that launcher.
        lease: that the key is bound to.
        revision: of etcd when the key was made; rises from leader to leader.
    """

    address: str
    incarnation: str
    lease: int
    revision: int


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The first event."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The leader's key, None = nobody leads, as of a revision of etcd."""

    leader: Leadership | None
    revision: int


@dataclass(frozen=True, slots=True)
class Won:
    """Answer to `Claim`: this launcher leads.

    Attributes:
        lease: that was made for it.
        revision: of the leader's key.
        asked_ns: when the lease was asked for, monotonic.
        ledger: as the leader before has left it; None = there is none.
    """

    lease: int
    revision: int
    asked_ns: int
    ledger: Ledger | None


@dataclass(frozen=True, slots=True)
class NotWon:
    """Answer to `Claim`: somebody was faster; None = and is gone already."""

    leader: Leadership | None


@dataclass(frozen=True, slots=True)
class Renewed:
    """Answer to `Renew`, which was asked for at ``asked_ns``."""

    lease: int
    asked_ns: int


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """Answer to `Renew`: etcd does not know the lease any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The leader wants a ledger to be written; a later one replaces it."""

    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Written:
    """Answer to `Write`: etcd has it."""

    version: int


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Answer to `Write`: the leader's key is another one now."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer to a command: etcd has not answered, or with an error.

    Attributes:
        during: what was tried.
        final: trying again will not help.
        ledger: of a `Write`.
    """

    during: Literal["look", "claim", "renew", "write"]
    reason: str
    final: bool = False
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True)
class StepDown:
    """The leader has stood down by itself: somebody knows more of the job than it did."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take part no more. ``erase``: the job is over, its ledger is of no use."""

    erase: bool = False


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by `SetTimer` ran out."""

    name: str


Event = (
    Begin
    | Seen
    | Won
    | NotWon
    | Renewed
    | LeaseGone
    | Keep
    | Written
    | NotWritten
    | Failed
    | StepDown
    | Withdraw
    | TimerFired
)


# --- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Read the leader's key and watch it from then on; answer with Seen each time, or Failed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Make a lease and the leader's key, if there is none; answer with Won, NotWon or Failed."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease; answer with Renewed, LeaseGone or Failed."""

    lease: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write if the leader's key is of this revision; answer with Written, NotWritten or Failed."""

    ledger: Ledger
    revision: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back, and with it the leader's key; no answer.

    ``erase``: delete the ledger before, if the leader's key is of this revision; 0 = do not.
    """

    lease: int
    erase: int = 0


@dataclass(frozen=True, slots=True)
class Lead:
    """Lead the job from now on."""

    epoch: int
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class StandDown:
    """Lead it no more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Persisted:
    """For the leader: this version is in etcd."""

    version: int


@dataclass(frozen=True, slots=True)
class Follow:
    """The leader is at this address; "" = there is none, for a ``reason`` if it is known."""

    address: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This launcher can never take part."""

    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer with TimerFired(name) after ``delay_s``; replaces a timer of that name."""

    name: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the user."""

    text: str


Command = (
    Look
    | Claim
    | Renew
    | Write
    | Release
    | Lead
    | StandDown
    | Persisted
    | Follow
    | GiveUp
    | SetTimer
    | Say
)


# --- the machine --------------------------------------------------------------------------------


class State(enum.Enum):
    """See the module's documentation."""

    LOOKING = enum.auto()
    FOLLOWING = enum.auto()
    CLAIMING = enum.auto()
    LEADING = enum.auto()
    OVER = enum.auto()


@dataclass(slots=True)
class Campaign:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        incarnation, address: of this launcher.
        lease_s: whole seconds.
    """

    incarnation: str
    address: str
    lease_s: float
    state: State = State.LOOKING
    _pause_s: float = _PAUSE_FIRST_S
    _trouble: str = ""  # with etcd, as the user was told
    # while leading
    _lease: int = 0
    _revision: int = 0  # of the leader's key
    _lease_end_ns: int = 0
    _unwritten: Ledger | None = None
    _writing: bool = False

    def handle(self, event: Event, now: int) -> list[Command]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        if self.state is State.OVER:
            return self._too_late(event)
        match event:
            case Begin():
                return [Look()]
            case Seen():
                return self._back() + self._seen(event)
            case Won():
                return self._back() + self._won(event, now)
            case NotWon():
                return self._back() + self._not_won(event)
            case Failed():
                return self._failed(event)
            case Withdraw():
                return self._withdraw(event)
            case TimerFired(name="look"):
                return [Look()]
        return self._while_leading(event, now) if self.state is State.LEADING else []

    # --- who leads ------------------------------------------------------------------------------

    def _seen(self, seen: Seen) -> list[Command]:
        leader = seen.leader
        match self.state:
            case State.CLAIMING:
                return []  # the answer to the claim says more
            case State.LEADING if seen.revision < self._revision:
                return []  # that was before
            case State.LEADING:
                mine = leader is not None and leader.revision == self._revision
                return [] if mine else self._lost("the lease in etcd is gone")
        if leader is None:
            self.state = State.CLAIMING
            return [Follow(""), Claim()]
        if leader.incarnation == self.incarnation:  # its own, given up or never heard of
            self.state = State.LOOKING
            return [Release(leader.lease)]
        self.state = State.FOLLOWING
        return [Follow(leader.address)]

    def _won(self, won: Won, now: int) -> list[Command]:
        if self.state is not State.CLAIMING:
            return [Release(won.lease)]
        self.state = State.LEADING
        self._lease, self._revision = won.lease, won.revision
        self._lease_end_ns = won.asked_ns + round(self.lease_s * _NS)
        self._unwritten, self._writing = None, False
        ledger = won.ledger if won.ledger is not None else Ledger(run_id="")
        epoch = won.revision
        if ledger.epoch >= epoch:  # an etcd with another history
            epoch = election.next_epoch(ledger.epoch, self.incarnation)
        renew = SetTimer("renew", self.lease_s / 3)
        return [renew, self._set_expire(now), Lead(epoch, ledger), Follow(self.address)]

    def _not_won(self, not_won: NotWon) -> list[Command]:
        if self.state is State.CLAIMING:
            self.state = State.LOOKING
        return self._seen(Seen(not_won.leader, 0))

    def _lost(self, reason: str) -> list[Command]:
        return [StandDown(reason), *self._step_down()]

    def _step_down(self) -> list[Command]:
        self.state = State.LOOKING
        self._unwritten = None
        return [Release(self._lease), Look()]

    def _withdraw(self, withdraw: Withdraw) -> list[Command]:
        leads, self.state = self.state is State.LEADING, State.OVER
        return [Release(self._lease, self._revision if withdraw.erase else 0)] if leads else []

    def _too_late(self, event: Event) -> list[Command]:
        return [Release(event.lease)] if isinstance(event, Won) else []

    # --- while this one leads -------------------------------------------------------------------

    def _while_leading(self, event: Event, now: int) -> list[Command]:
        match event:
            case Renewed(lease=lease) if lease == self._lease:
                end_ns = event.asked_ns + round(self.lease_s * _NS)
                self._lease_end_ns = max(self._lease_end_ns, end_ns)
                return [*self._back(), self._set_expire(now)]
            case LeaseGone(lease=lease) if lease == self._lease:
                return self._lost("the lease in etcd is over")
            case Keep(ledger=ledger):
                self._unwritten = ledger
                return self._write()
            case Written(version=version):
                self._writing = False
                return [*self._back(), Persisted(version), *self._write()]
            case NotWritten():
                return self._lost("another launcher holds the lease in etcd")
            case StepDown():
                return self._step_down()
            case TimerFired(name="renew"):
                return [Renew(self._lease), SetTimer("renew", self.lease_s / 3)]
            case TimerFired(name="expire") if now < self._lease_end_ns:
                return [self._set_expire(now)]
            case TimerFired(name="expire"):
                return self._lost(f"etcd could not be reached for {self.lease_s:g} s")
            case TimerFired(name="write"):
                return self._write()
        return []

    def _set_expire(self, now: int) -> Command:
        return SetTimer("expire", max(0.0, (self._lease_end_ns - now) / _NS))

    def _write(self) -> list[Command]:
        if self._writing or self._unwritten is None:
            return []
        ledger, self._unwritten = self._unwritten, None
        self._writing = True
        return [Write(ledger, self._revision)]

    # --- etcd is away, and back -----------------------------------------------------------------

    def _failed(self, failed: Failed) -> list[Command]:
        if failed.final and not self._trouble and self.state in {State.LOOKING, State.CLAIMING}:
            self.state = State.OVER
            return [GiveUp(failed.reason)]
        commands = self._say_trouble(failed.reason)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSE_LONGEST_S)
        match failed.during:
            case "look":
                return [*commands, SetTimer("look", pause_s)]
            case "claim" if self.state is State.CLAIMING:
                self.state = State.LOOKING
                return [*commands, SetTimer("look", pause_s)]
            case "renew" if self.state is State.LEADING:
                return [*commands, SetTimer("renew", min(pause_s, self.lease_s / 3))]
            case "write" if self.state is State.LEADING and failed.ledger is not None:
                self._writing = False
                self._unwritten = self._unwritten or failed.ledger
                return [*commands, SetTimer("write", pause_s)]
        return commands

    def _say_trouble(self, reason: str) -> list[Command]:
        away: list[Command] = []
        if self.state in {State.LOOKING, State.CLAIMING}:
            away = [Follow("", reason)]
        if self._trouble:
            return away
        self._trouble = reason
        text = f"{reason}; it is tried again and again"
        if self.state is State.LEADING:
            text += "; the ranks go on, but nothing new is started until it answers"
        return [*away, Say(text)]

    def _back(self) -> list[Command]:
        self._pause_s = _PAUSE_FIRST_S
        trouble, self._trouble = self._trouble, ""
        return [Say("etcd answers again")] if trouble else []
