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
    """Of one leader, on ``node``."""

    def __init__(self, node: str, sessions: Sessions) -> None:
        self._node = node
        self._sessions = sessions
        self._asked = 0

    def ask(self, ledger: p.Ledger) -> list[c.Command]:
        """Ask some of the members that are not here: perhaps they follow a later leader."""
        is_here = self._sessions.is_here
        missing = [seat for seat in ledger.table if seat.address and not is_here(seat)]
        if not missing or not election.votes_count(ledger):
            return []
        self._asked += ASK_AT_ONCE
        first = self._asked % len(missing)
        some = (missing[first:] + missing[:first])[:ASK_AT_ONCE]
        miss = p.Miss(node=self._node, incarnation="", epoch=ledger.epoch)
        return [c.Ask(seat.node, seat.address, miss) for seat in some]

    def successor(self, answer: p.MissAnswer, epoch: int, *, sure: bool) -> str:
        """The leader to give way to, "" = none: a later one, or any if this one is not sure."""
        if answer.lost or answer.epoch == epoch:
            return ""
        return "" if answer.epoch < epoch and sure else answer.leader

    def stand_down(self, reason: str, leader: str) -> list[c.Command]:
        """Send all followers to ``leader``, "" = they find it themselves."""
        refused = p.Refused(reason=reason, leader=leader)
        commands: list[c.Command] = []
        for session in self._sessions.connected():
            assert session.link is not None
            commands += [c.Send(session.link, refused), c.Close(session.link)]
        return [*commands, c.Done(leader)]
