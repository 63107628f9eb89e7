"""The knowledge of a node about its job, and its promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence


def _no_vote() -> register.Vote[p.Ledger]:
    return register.Vote(p.NO_LEDGER, later=p.newer)


@dataclass(slots=True)
class Knowledge:
    """The knowledge of one agent, for as long as it lives.

    Attributes:
        node, incarnation: who it is.
        epoch: of the leader it follows, or followed last.
        vote: the ledger it keeps, and which epoch it has promised to take no earlier orders than.
        tables: that its leader knows it to have.
    """

    node: str
    incarnation: str
    epoch: int = 0
    vote: register.Vote[p.Ledger] = field(default_factory=_no_vote)
    tables: Tables = field(default_factory=Tables)
    _table: tuple[p.Seat, ...] = ()  # that was looked through last
    _is_seated: bool = False

    @property
    def ledger(self) -> p.Ledger:
        """The newest it has been given; `protocol.NO_LEDGER` = none."""
        return self.vote.value

    @ledger.setter
    def ledger(self, ledger: p.Ledger) -> None:
        self.vote.value = ledger

    @property
    def promised(self) -> int:
        """It takes no orders of an earlier epoch."""
        return self.vote.promised

    @promised.setter
    def promised(self, epoch: int) -> None:
        self.vote.promised = epoch

    @property
    def me(self) -> register.Voter:
        """This node's name and incarnation, as voters have them."""
        return (self.node, self.incarnation)

    @property
    def told(self) -> p.Ledger | None:
        """The ledger, None = it has been given none."""
        return None if self.ledger is p.NO_LEDGER else self.ledger

    def learn(self, ledger: p.Ledger | None) -> None:
        """Keep the newer of two ledgers."""
        if ledger is not None:
            self.vote.learn(ledger)

    def started(self, epoch: int, number: int, change: p.Started) -> bool:
        """Take in that a prepared table is that of round ``number``; return whether it is known."""
        known = self.ledger
        if (known.epoch, known.version) == (epoch, change.prepared):
            self.ledger = p.started(known, change.version, replaceable=change.replaceable)
        return self.ledger.round == number

    def stopped(self, epoch: int, number: int, change: p.Stopped) -> None:
        """Take in that round ``number`` is being stopped."""
        known = self.ledger
        if (known.epoch, known.round) != (epoch, number):
            return  # the ledger follows, once members have agreed to it
        if known.version < change.version:
            self.ledger = p.stopped(known, change.version, change.restarts_used, change.excluded)

    def has_seat(self, table: tuple[p.Seat, ...]) -> bool:
        """Whether this agent, not an earlier one of this node, is in a table."""
        if table is not self._table:  # with thousands of seats, and it is asked often
            self._table, self._is_seated = table, self.me in map(register.voter, table)
        return self._is_seated

    def is_mine(self, table: Sequence[p.Seat], seat: int) -> bool:
        """Return whether the seat at that place of a table is this agent's."""
        return 0 <= seat < len(table) and register.voter(table[seat]) == self.me

    @property
    def votes(self) -> bool:
        """Return whether this node has a vote about who leads.

        It keeps the ledger with others, or is to keep it alone, and has not before: nobody else may
        lead from such a ledger, as the others do not know how that one goes on.
        """
        ledger = self.ledger
        alone = ledger.round >= 0 and bool(ledger.before) and ledger.leader == self.node
        return (p.has_committee(ledger) or alone) and self.me in register.members(ledger)

    @property
    def agreed(self) -> bool:
        """Return whether a majority has agreed to the leader, as far as is known."""
        return self.ledger.epoch == self.epoch

    def should_join(self, other: p.Miss, *, follows: bool) -> bool:
        """Return whether to follow the leader that asks: its job has the name of the one here.

        If two have begun, the later epoch goes on. The same holds where two lead the same job
        without a committee: one by what others knew, after its disk was lost. A node that
        ``follows`` nobody joins any leader of its job.
        """
        if not other.leader or other.round < 0 or other.epoch == self.epoch:
            return False
        if self.ledger.round < 0:
            return True
        if other.birth == self.ledger.birth and p.has_committee(self.ledger):
            return False
        if other.birth == self.ledger.birth and not follows:
            return True
        return other.epoch > max(self.epoch, self.promised)

    def others(self) -> list[register.Member]:
        """Other launchers that keep the ledger, or have kept it before."""
        return [each for who, each in register.members(self.ledger).items() if who != self.me]

    def addresses(self, node: str) -> list[str]:
        """Addresses of another member, as far as they are known."""
        known = self.ledger
        seats: list[p.Seat | register.Member] = [*known.table, *known.pending, *known.committee]
        found = dict.fromkeys(seat.address for seat in seats if seat.node == node)
        return [address for address in found if address]

    def later_epoch(self, other: int = 0) -> int:
        """An epoch of this agent that is later than all it knows, and than another one."""
        return register.next_epoch(max(self.promised, self.epoch, other), self.incarnation)

    def consider(self, claim: p.Claim, *, leaderless: bool) -> p.Grant:
        """Grant a claim to lead, or say why not by the epoch and ledger known here."""
        granted = leaderless and self.vote.claimed(claim.epoch, claim.ledger)
        newer = p.newer(self.ledger, claim.ledger)
        return p.Grant(
            node=self.node,
            incarnation=self.incarnation,
            epoch=self.promised,
            granted=granted,
            ledger=self.ledger if newer else None,
        )
