"""When a leader gives way: it asks members that it does not hear whom they follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core import leader_messages as c

if TYPE_CHECKING:
    from undaunted.coordinator.core.record import Record
    from undaunted.coordinator.core.sessions import Sessions

# Members that are not here, of whom so many are asked at a time.
ASK_AT_ONCE = 8


class Succession:
    """Of one leader."""

    def __init__(self, config: c.LeaderConfig, record: Record, sessions: Sessions) -> None:
        self._config = config
        self._record = record
        self._sessions = sessions
        self._asked = 0

    def ask(self, *, sure: bool) -> list[c.Command]:
        """Ask some of the members that are not here: perhaps they follow a later leader.

        And, if it is sure to lead, whoever is at the endpoints: a launcher there that knows
        nothing of this job leads one of its own.
        """
        own, ledger = self._config, self._record.ledger
        miss = p.Miss(
            node=own.node,
            incarnation="",
            epoch=self._record.epoch,
            leader=own.address if sure else "",
            birth=ledger.birth,
            round=ledger.round,
        )
        asks: list[c.Command] = []
        if sure:
            asks += [c.Ask("", endpoint, miss) for endpoint in own.endpoints]
        is_here = self._sessions.is_here
        members = [
            seat
            for table, vote in election.electing(ledger)
            if election.table_votes(table, vote)
            for seat in table
        ]
        missing = [seat for seat in members if seat.address and not is_here(seat)]
        if not missing:
            return asks
        self._asked += ASK_AT_ONCE
        first = self._asked % len(missing)
        some = (missing[first:] + missing[:first])[:ASK_AT_ONCE]
        return [*asks, *(c.Ask(seat.node, seat.address, miss) for seat in some)]

    def successor(self, answer: p.MissAnswer, *, sure: bool) -> str:
        """The leader to give way to, "" = none.

        It is one that a quorum has agreed to later. If this one is not sure, and both go on from
        the same ledger, it is also the one that has written that, or one of a later epoch. One
        whose job has begun goes before one whose job has not.
        """
        ledger, epoch = self._record.ledger, self._record.epoch
        if answer.lost or answer.epoch == epoch:
            return ""
        if answer.round is not None and (answer.round < 0) != (ledger.round < 0):
            return answer.leader if ledger.round < 0 else ""
        if sure or answer.known != ledger.epoch:
            return answer.leader if answer.known > ledger.epoch else ""
        return answer.leader if answer.epoch > epoch or answer.epoch == answer.known else ""

    def stand_down(self, reason: str, leader: str) -> list[c.Command]:
        """Send all followers to ``leader``, "" = they find it themselves."""
        refused = p.Refused(reason=reason, leader=leader)
        commands: list[c.Command] = []
        for session in self._sessions.connected():
            assert session.link is not None
            commands += [c.Send(session.link, refused), c.Close(session.link)]
        return [*commands, c.Done(leader)]
