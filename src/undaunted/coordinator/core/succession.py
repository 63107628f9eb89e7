"""When a leader gives way: it asks members that it does not hear whom they follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core import leader_messages as c

if TYPE_CHECKING:
    from undaunted.coordinator.core.sessions import Sessions

# Members that are not here, of whom so many are asked at a time.
ASK_AT_ONCE = 8


class Succession:
    """Of one leader."""

    def __init__(self, config: c.LeaderConfig, sessions: Sessions) -> None:
        self._config = config
        self._sessions = sessions
        self._asked = 0

    def ask(self, ledger: p.Ledger, *, sure: bool) -> list[c.Command]:
        """Ask some of the members that are not here: perhaps they follow a later leader.

        And, if it is sure to lead, whoever is at the endpoints: a launcher there that knows
        nothing of this job leads one of its own.
        """
        own = self._config
        miss = p.Miss(
            node=own.node,
            incarnation="",
            epoch=ledger.epoch,
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

    def successor(self, answer: p.MissAnswer, ledger: p.Ledger, *, sure: bool) -> str:
        """The leader to give way to, "" = none: a later one, or any if this one is not sure.

        One whose job has begun goes before one whose job has not.
        """
        if answer.lost or answer.epoch == ledger.epoch:
            return ""
        if answer.round is not None and (answer.round < 0) != (ledger.round < 0):
            return answer.leader if ledger.round < 0 else ""
        if answer.epoch > ledger.epoch:
            return answer.leader
        # The other one gives way as well, to the later epoch: then somebody has to be elected.
        return "" if sure or not election.votes_count(ledger) else answer.leader

    def stand_down(self, reason: str, leader: str) -> list[c.Command]:
        """Send all followers to ``leader``, "" = they find it themselves."""
        refused = p.Refused(reason=reason, leader=leader)
        commands: list[c.Command] = []
        for session in self._sessions.connected():
            assert session.link is not None
            commands += [c.Send(session.link, refused), c.Close(session.link)]
        return [*commands, c.Done(leader)]
