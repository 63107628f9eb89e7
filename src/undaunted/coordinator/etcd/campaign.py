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

from undaunted.coordinator.core import election
from undaunted.coordinator.etcd import campaign_messages as e
from undaunted.coordinator.protocol import Ledger

_NS = 1_000_000_000
_PAUSE_FIRST_S = 0.1
_PAUSE_LONGEST_S = 1.0


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

    def handle(self, event: e.Event, now: int) -> list[e.Command]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        if self.state is State.OVER:
            return self._too_late(event)
        match event:
            case e.Begin():
                return [e.Look()]
            case e.Seen():
                return self._back() + self._seen(event)
            case e.Won():
                return self._back() + self._won(event, now)
            case e.NotWon():
                return self._back() + self._not_won(event)
            case e.Failed():
                return self._failed(event)
            case e.Withdraw():
                return self._withdraw(event)
            case e.TimerFired(name="look"):
                return [e.Look()]
        return self._while_leading(event, now) if self.state is State.LEADING else []

    # --- who leads ------------------------------------------------------------------------------

    def _seen(self, seen: e.Seen) -> list[e.Command]:
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
            return [e.Follow(""), e.Claim()]
        if leader.incarnation == self.incarnation:  # its own, given up or never heard of
            self.state = State.LOOKING
            return [e.Release(leader.lease)]
        self.state = State.FOLLOWING
        return [e.Follow(leader.address)]

    def _won(self, won: e.Won, now: int) -> list[e.Command]:
        if self.state is not State.CLAIMING:
            return [e.Release(won.lease)]
        self.state = State.LEADING
        self._lease, self._revision = won.lease, won.revision
        self._lease_end_ns = won.asked_ns + round(self.lease_s * _NS)
        self._unwritten, self._writing = None, False
        ledger = won.ledger if won.ledger is not None else Ledger(run_id="")
        epoch = won.revision
        if ledger.epoch >= epoch:  # an etcd with another history
            epoch = election.next_epoch(ledger.epoch, self.incarnation)
        renew = e.SetTimer("renew", self.lease_s / 3)
        return [renew, self._set_expire(now), e.Lead(epoch, ledger), e.Follow(self.address)]

    def _not_won(self, not_won: e.NotWon) -> list[e.Command]:
        if self.state is State.CLAIMING:
            self.state = State.LOOKING
        return self._seen(e.Seen(not_won.leader, 0))

    def _lost(self, reason: str) -> list[e.Command]:
        return [e.StandDown(reason), *self._step_down()]

    def _step_down(self) -> list[e.Command]:
        self.state = State.LOOKING
        self._unwritten = None
        return [e.Release(self._lease), e.Look()]

    def _withdraw(self, withdraw: e.Withdraw) -> list[e.Command]:
        leads, self.state = self.state is State.LEADING, State.OVER
        return [e.Release(self._lease, self._revision if withdraw.erase else 0)] if leads else []

    def _too_late(self, event: e.Event) -> list[e.Command]:
        return [e.Release(event.lease)] if isinstance(event, e.Won) else []

    # --- while this one leads -------------------------------------------------------------------

    def _while_leading(self, event: e.Event, now: int) -> list[e.Command]:
        match event:
            case e.Renewed(lease=lease) if lease == self._lease:
                end_ns = event.asked_ns + round(self.lease_s * _NS)
                self._lease_end_ns = max(self._lease_end_ns, end_ns)
                return [*self._back(), self._set_expire(now)]
            case e.LeaseGone(lease=lease) if lease == self._lease:
                return self._lost("the lease in etcd is over")
            case e.Keep(ledger=ledger):
                self._unwritten = ledger
                return self._write()
            case e.Written(version=version):
                self._writing = False
                return [*self._back(), e.Persisted(version), *self._write()]
            case e.NotWritten():
                return self._lost("another launcher holds the lease in etcd")
            case e.StepDown():
                return self._step_down()
            case e.TimerFired(name="renew"):
                return [e.Renew(self._lease), e.SetTimer("renew", self.lease_s / 3)]
            case e.TimerFired(name="expire") if now < self._lease_end_ns:
                return [self._set_expire(now)]
            case e.TimerFired(name="expire"):
                return self._lost(f"etcd could not be reached for {self.lease_s:g} s")
            case e.TimerFired(name="write"):
                return self._write()
        return []

    def _set_expire(self, now: int) -> e.Command:
        return e.SetTimer("expire", max(0.0, (self._lease_end_ns - now) / _NS))

    def _write(self) -> list[e.Command]:
        if self._writing or self._unwritten is None:
            return []
        ledger, self._unwritten = self._unwritten, None
        self._writing = True
        return [e.Write(ledger, self._revision)]

    # --- etcd is away, and back -----------------------------------------------------------------

    def _failed(self, failed: e.Failed) -> list[e.Command]:
        if failed.final and not self._trouble and self.state in {State.LOOKING, State.CLAIMING}:
            self.state = State.OVER
            return [e.GiveUp(failed.reason)]
        commands = self._say_trouble(failed.reason)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSE_LONGEST_S)
        match failed.during:
            case "look":
                return [*commands, e.SetTimer("look", pause_s)]
            case "claim" if self.state is State.CLAIMING:
                self.state = State.LOOKING
                return [*commands, e.SetTimer("look", pause_s)]
            case "renew" if self.state is State.LEADING:
                return [*commands, e.SetTimer("renew", min(pause_s, self.lease_s / 3))]
            case "write" if self.state is State.LEADING and failed.ledger is not None:
                self._writing = False
                self._unwritten = self._unwritten or failed.ledger
                return [*commands, e.SetTimer("write", pause_s)]
        return commands

    def _say_trouble(self, reason: str) -> list[e.Command]:
        away: list[e.Command] = []
        if self.state in {State.LOOKING, State.CLAIMING}:
            away = [e.Follow("", reason)]
        if self._trouble:
            return away
        self._trouble = reason
        text = f"{reason}; it is tried again and again"
        if self.state is State.LEADING:
            text += "; the ranks go on, but nothing new is started until it answers"
        return [*away, e.Say(text)]

    def _back(self) -> list[e.Command]:
        self._pause_s = _PAUSE_FIRST_S
        trouble, self._trouble = self._trouble, ""
        return [e.Say("etcd answers again")] if trouble else []
