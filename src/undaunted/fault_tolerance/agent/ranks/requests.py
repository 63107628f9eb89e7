"""What ranks ask for through their mailbox, and what they are answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.coordinator.core import messages as job
from undaunted.fault_tolerance.data import WorkloadAction, decode_request

if TYPE_CHECKING:
    from undaunted.fault_tolerance.agent.orders.orders import Orders
    from undaunted.fault_tolerance.agent.ranks.learned import LimitKeeper
    from undaunted.fault_tolerance.agent.round.round import Round
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.progress.area import MailboxRequest, PageArea


@dataclass(frozen=True)
class Requests:
    """Answers every request: limits that ranks have calculated, and control of the workload."""

    node: str
    area: PageArea
    limits: LimitKeeper
    scribe: Scribe
    orders: Orders

    def take(self, current: Round, local_rank: int, message: MailboxRequest) -> None:
        """Do what a rank asks for, and answer it."""
        if (reply := self.limits.take(message.payload)) is not None:
            self.area.answer(local_rank, message, reply)
            return
        try:
            request = decode_request(message.payload)
        except ValueError as error:
            self.area.answer(local_rank, message, str(error).encode())
            return
        self.scribe.control_requested(current.rank(local_rank), request)
        self.area.answer(local_rank, message, b"ok")
        about = (self.node, current.number, request.description)
        if request.action is WorkloadAction.ShutdownWorkload:
            self.orders.post(job.ShutdownRequested(*about))
        elif request.action is WorkloadAction.ExcludeThisNode:
            self.orders.post(job.ExclusionRequested(*about))
