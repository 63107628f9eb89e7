"""What a node knows about its job, and has promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Knowledge:
    """The knowledge of one agent, for as long as it lives.

    Attributes:
        node, incarnation: who it is.
        ledger: the newest it has been given; `protocol.NO_LEDGER` = none.
        epoch: of the leader it follows, or followed last.
        promised: it takes no orders of an earlier epoch.
    """

    node: str
    incarnation: str
    ledger: p.Ledger = p.NO_LEDGER
    epoch: int = 0
    promised: int = 0

    @property
    def me(self) -> election.Voter:
        """This node's name and incarnation, as voters have them."""
        return (self.node, self.incarnation)

    @property
    def told(self) -> p.Ledger | None:
        """The ledger, None = it has been given none."""
        return None if self.ledger is p.NO_LEDGER else self.ledger

    def learn(self, ledger: p.Ledger | None) -> None:
        """Keep the newer of two ledgers."""
        if ledger is not None and p.newer(ledger, self.ledger):
            self.ledger = p.settled_by(ledger, self.ledger)

    def started(self, epoch: int, number: int, change: p.Started) -> bool:
        """Take in that a prepared table is that of round ``number``; return whether it is known."""
        known = self.ledger
        if (known.epoch, known.version) == (epoch, change.prepared):
            self.ledger = p.started(known, change.version, change.casting_vote)
        return self.ledger.round == number

    def settled(self, number: int) -> None:
        """Take in that every member of round ``number`` knows that it was started."""
        if self.ledger.before and self.ledger.round == number:
            self.ledger = p.settled(self.ledger)

    def stopped(self, epoch: int, number: int, change: p.Stopped) -> None:
        """Take in that round ``number`` is being stopped."""
        known = self.ledger
        if (known.epoch, known.round) != (epoch, number):
            return  # the ledger follows, once members have agreed to it
        if known.version < change.version:
            self.ledger = p.stopped(known, change.version, change.restarts_used, change.excluded)

    def has_seat(self, table: tuple[p.Seat, ...]) -> bool:
        """Whether this agent, not an earlier one of this node, is in a table."""
        return self.me in election.electorate(table).seats

    def is_mine(self, table: Sequence[p.Seat], seat: int) -> bool:
        """Whether the seat at that place of a table is this agent's."""
        return 0 <= seat < len(table) and election.voter(table[seat]) == self.me

    @property
    def votes(self) -> bool:
        """Whether this node has a vote about who leads."""
        return election.votes_count(self.ledger) and self.has_seat(self.ledger.table)

    @property
    def agreed(self) -> bool:
        """Whether a quorum has agreed to the leader that is followed, as far as is known."""
        return self.ledger.epoch == self.epoch

    def should_join(self, other: p.Miss) -> bool:
        """Whether the leader that asks leads this job, and the one known here another by mistake.

        Where two have begun, the later epoch goes on; so does it where two lead the same job whose
        members have no votes: one by what others knew, after its disk was lost.
        """
        if not other.leader or other.round < 0 or other.epoch == self.epoch:
            return False
        if self.ledger.round < 0:
            return True
        if other.birth == self.ledger.birth and election.votes_count(self.ledger):
            return False
        return other.epoch > max(self.epoch, self.promised)

    def electorate(self) -> list[p.Seat]:
        """Other members of the last table, and of those before and after it if these count."""
        known = self.ledger
        counts = (*known.before, *known.table, *known.pending)
        seats = {election.voter(seat): seat for seat in counts}
        return [seat for who, seat in seats.items() if who != self.me]

    def addresses(self, node: str) -> list[str]:
        """Addresses of another member, as far as they are known."""
        seats = (*self.ledger.table, *self.ledger.pending)
        known = dict.fromkeys(seat.address for seat in seats if seat.node == node)
        return [address for address in known if address]

    def later_epoch(self) -> int:
        """An epoch of this agent that is later than all it knows."""
        return election.next_epoch(max(self.promised, self.epoch), self.incarnation)

    def consider(self, claim: p.Claim, *, leaderless: bool) -> p.Grant:
        """Grant a claim to lead, or say why not by the epoch and ledger known here."""
        behind = p.newer(self.ledger, claim.ledger)
        granted = leaderless and claim.epoch > self.promised and not behind
        if granted:
            self.promised = claim.epoch
        return p.Grant(
            node=self.node,
            incarnation=self.incarnation,
            epoch=self.promised,
            granted=granted,
            ledger=self.told,
        )
