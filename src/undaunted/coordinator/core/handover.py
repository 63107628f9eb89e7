"""A leader whose node leaves the job: it names the one that leads from then on.

It is the only one that may lead, and gives that up with the word that makes another one the leader.
So nobody has to vote, and jobs go on that are too small for a vote. It names one, once: if that one
does not come to lead, members that have votes find another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import leader_messages as c

if TYPE_CHECKING:
    from undaunted.coordinator.core.record import Record
    from undaunted.coordinator.core.sessions import Session, Sessions

# A leader whose node leaves stays so long for a round to begin without it.
STAY_S = 15.0


@dataclass(slots=True)
class Handover:
    """Of one leader.

    Attributes:
        due: the node of the leader has been dismissed.
        to: who leads next, None = nobody has been told.
    """

    config: c.LeaderConfig
    record: Record
    sessions: Sessions
    due: bool = False
    to: Session | None = None

    @property
    def address(self) -> str:
        """Of the next leader, "" = there is none."""
        return "" if self.to is None else self.to.hello.address

    def leave(self) -> list[c.Command]:
        """The node of the leader has no part in the job any more."""
        self.due = True
        return [c.SetTimer("leave", 0, STAY_S)]

    def begin(self) -> list[c.Command]:
        """Tell one member of the round that runs to lead; nothing, if there is none to be told."""
        self.to = self._successor()
        if self.to is None:
            return []
        ledger = self.record.ledger
        later = msgspec.structs.replace(ledger, leader=self.to.node, version=ledger.version + 1)
        return [
            c.Persist(later),  # for a launcher that is started again on this node
            *self.to.send(p.HandOver(epoch=self.record.epoch, ledger=ledger)),
            c.SetTimer("leave", 0, self.config.lease_s),
        ]

    def is_over(self, event: c.Event) -> bool:
        """Whether the next leader has answered, or cannot any more."""
        match event:
            case c.Received(link=link, message=p.TakenOver()) | c.Closed(link=link):
                return self.to is self.sessions.on(link)
            case c.TimerFired(name="leave"):
                return True
        return False

    def refuse(self, link: int) -> list[c.Command]:
        """Send somebody to the next leader."""
        refused = p.Refused(reason="another node leads the job", leader=self.address)
        return [c.Send(link, refused), c.Close(link)]

    def _successor(self) -> Session | None:
        for seat in self.record.ledger.table:
            other = seat.node != self.config.node and seat.address
            if other and self.sessions.is_here(seat):
                return self.sessions[seat.node]
        return None
