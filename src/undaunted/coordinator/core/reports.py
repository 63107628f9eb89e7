"""What a node has reported: kept until a leader has acknowledged it, and for the next leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core.messages import Preempted

if TYPE_CHECKING:
    from undaunted.coordinator.core.messages import NodeEvent

# Reports of one round that are kept for a leader who takes over.
KEPT_REPORTS = 64


@dataclass(slots=True)
class Reports:
    """Of one follower, numbered from 1."""

    _kept: list[p.Report] = field(default_factory=list)
    _last: int = 0
    _acknowledged: int = 0

    def add(self, event: NodeEvent) -> p.Report:
        """Number what has happened, and keep it."""
        self._last += 1
        report = p.Report(number=self._last, event=event)
        self._kept = [*self._kept[-KEPT_REPORTS + 1 :], report]
        return report

    def acknowledge(self, number: int) -> None:
        """The leader has this report, and all before it."""
        self._acknowledged = max(self._acknowledged, number)

    def forget_before(self, number: int) -> None:
        """Round ``number`` begins; nobody asks for earlier ones."""
        self._kept = [each for each in self._kept if _round(each.event) >= number]

    def to_send(self, *, new_leader: bool) -> list[p.Report]:
        """What a leader has to be told: all, or what has not been acknowledged."""
        return [each for each in self._kept if new_leader or each.number > self._acknowledged]


def _round(event: NodeEvent) -> int:
    return -1 if isinstance(event, Preempted) else event.round
