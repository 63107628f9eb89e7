"""Carries out what the job policy commands: orders for the followers, and the ledger's changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.coordinator.core import election
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.formation import name_some

if TYPE_CHECKING:
    from undaunted.coordinator.core.policy import JobPolicy
    from undaunted.coordinator.core.preparation import Preparation
    from undaunted.coordinator.core.record import Record
    from undaunted.coordinator.core.sessions import Session, Sessions

# What ranks of a round that is over get between SIGTERM and SIGKILL.
DRAIN_GRACE_S = 2.0


class Execution:
    """Feeds the policy of one leader.

    Attributes:
        policy: of the job; another one once the leader has recovered.
        quorum: enough members are connected, as far as the policy has been told.
        dismissed: nodes that have been told that the job is over for them.
    """

    def __init__(
        self, policy: JobPolicy, record: Record, sessions: Sessions, preparation: Preparation
    ) -> None:
        self.policy = policy
        self.quorum = True
        self.dismissed: set[str] = set()
        self._record = record
        self._sessions = sessions
        self._preparation = preparation

    def feed(self, event: m.Event, now: int) -> list[c.Command]:
        """Tell the policy what has happened; carry out what it makes of that."""
        commands: list[c.Command] = []
        for command in self.policy.handle(event):
            commands += self._obey(command, now)
        preparation, record = self._preparation, self._record
        record.replaceable = record.replaceable or self._more_than_needed
        if not self.policy.preparing:
            preparation.call_off()
        if preparation.asked_for is None:
            commands += self._record.catch_up(self.policy)
        # The version that is being acknowledged stays; the start writes the rest.
        return commands + self.start_if_ready(now)

    def start_if_ready(self, now: int) -> list[c.Command]:
        """Start the table that is being prepared, unless something is missing yet."""
        preparation = self._preparation
        if not preparation.complete:
            return []
        if not preparation.may_start(now):
            return [each for remark in preparation.remark(now) for each in self._tell_all(remark)]
        accepted = preparation.start()
        self._record.replaceable = self._more_than_needed
        commands: list[c.Command] = [self._record.persist(), *self.feed(accepted, now)]
        learn = self._record.learn()
        table = {seat.node for seat in self._record.ledger.table}
        for session in self._sessions.connected():  # spares, who get no order
            if session.node not in table:
                commands += session.send(learn)
        return commands

    @property
    def _more_than_needed(self) -> bool:
        """Whether the job can go on without one of the nodes that are there."""
        return len(self.policy.roster.here) > self.policy.config.min_nodes

    def drain(self, session: Session) -> list[c.Command]:
        """Have a follower stop what it runs, since that is no part of the job any more."""
        if session.draining:
            return []  # it has been told while the leader recovered
        session.draining = True
        reason = "the job has gone on without this node"
        stop = m.Stop(session.node, session.hello.round, reason, DRAIN_GRACE_S)
        return session.order(self._record.order(stop))

    def drain_older(self, session: Session) -> list[c.Command]:
        """Do so, for a leader that recovers, if it is a round that is certainly over."""
        hello = session.hello
        older = hello.running and hello.round < self._record.ledger.round
        return self.drain(session) if older else []

    def look_at_quorum(self) -> m.QuorumLost | m.QuorumRegained | None:
        """What the policy has to be told about the quorum."""
        ledger = self._record.ledger
        has = election.may_start(self._sessions.voters, ledger)
        if has == self.quorum:
            return None
        self.quorum = has
        if has:
            return m.QuorumRegained()
        gone = [seat.node for seat in ledger.table if not self._sessions.is_here(seat)]
        total = len(ledger.table)
        return m.QuorumLost(
            f"{total - len(gone)} of {total} nodes of round {ledger.round} can be reached, which "
            f"is no majority: the launchers of {name_some(gone)} that took part in it are missing; "
            "bring them back into the network, or, if they have ended, start the whole job again, "
            "as a launcher that is started again has no vote"
        )

    def _obey(self, command: m.Command, now: int) -> list[c.Command]:
        match command:
            case m.Prepare():
                return self._preparation.begin(command, now)
            case m.SetTimer(name=name, round=number, delay_s=delay_s):
                return [c.SetTimer(f"policy {name}", number, delay_s)]
            case m.Decided() | m.Blamed() | m.Remark():
                return self._tell_all(command)
            case m.Stop():
                self._record.stop(self.policy)
            case m.End():
                self.dismissed.add(command.node)
        session = self._sessions.get(command.node)
        if session is None:
            return []  # it may never have come back
        if isinstance(command, m.Start):
            session.replaceable = self._record.replaceable
        return session.order(self._record.order(command))

    def _tell_all(self, note: m.Note) -> list[c.Command]:
        order = self._record.order(note)
        return [send for each in self._sessions.connected() for send in each.order(order)]
