"""Which members of a table have lost the leader, by what they have answered lately.

Every answer takes constant time, however large the job is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.coordinator.core import election

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator import protocol as p

_NS = 1_000_000_000
# The answer of another member counts for so long.
ANSWER_COUNTS_S = 2.5


class Missing:
    """What one member has heard during one absence of a leader. It misses the leader itself."""

    def __init__(self, me: election.Voter) -> None:
        self._me = me
        self._table: tuple[p.Seat, ...] = ()
        # When they have said so, the latest last; only members of the table.
        self._lost_ns: dict[election.Voter, int] = {}
        # The same of those who say that a quorum has lost the leader.
        self._quorum_ns: dict[election.Voter, int] = {}

    def hear(self, answer: p.MissAnswer, table: tuple[p.Seat, ...], now: int) -> None:
        """Take in an answer."""
        self._look_at(table)
        who = (answer.node, answer.incarnation)
        self._lost_ns.pop(who, None)
        self._quorum_ns.pop(who, None)
        if answer.lost and who in election.electorate(table).seats:
            self._lost_ns[who] = now
            if answer.quorum:
                self._quorum_ns[who] = now

    def asks(self, miss: p.Miss, table: tuple[p.Seat, ...], now: int) -> bool:
        """Take in that somebody asks; return whether it is a member, which so has lost it too."""
        self._look_at(table)
        who = (miss.node, miss.incarnation)
        if who not in election.electorate(table).seats:
            return False
        self._lost_ns.pop(who, None)
        self._lost_ns[who] = now
        return True

    def members(self, table: tuple[p.Seat, ...], now: int) -> Collection[election.Voter]:
        """Those of the table that have lost the leader."""
        self._look_at(table)
        self._lost_ns.pop(self._me, None)
        if self._me in election.electorate(table).seats:
            self._lost_ns[self._me] = now
        _forget(self._lost_ns, now)
        return self._lost_ns.keys()

    def quorum_is_told(self, now: int) -> bool:
        """Whether another one says that it has heard of a quorum that has."""
        _forget(self._quorum_ns, now)
        return bool(self._quorum_ns)

    def _look_at(self, table: tuple[p.Seat, ...]) -> None:
        if table is not self._table:
            self._table, seats = table, election.electorate(table).seats
            self._lost_ns = {who: at for who, at in self._lost_ns.items() if who in seats}


def _forget(times_ns: dict[election.Voter, int], now: int) -> None:
    """Drop what is too old; the oldest is the first."""
    oldest = now - round(ANSWER_COUNTS_S * _NS)
    while times_ns:
        who = next(iter(times_ns))
        if times_ns[who] >= oldest:
            return
        del times_ns[who]
