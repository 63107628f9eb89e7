"""After which iteration the ranks of a round stop: see docs/design/training.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.coordinator.core.messages import RanksAsked


@dataclass(slots=True)
class Stopping:
    """What nodes have reported, and what follows from it.

    Attributes:
        agree: why all of them stop, see `messages.Stop`.
        after: the iteration, None = not known yet, -1 = no rank asks.
    """

    agree: str
    after: int | None = None
    _asked: dict[str, RanksAsked] = field(default_factory=dict)

    def take(self, report: RanksAsked) -> None:
        """Note what ranks of a node have asked about."""
        self._asked[report.node] = report

    def decide(self, nodes: Iterable[str]) -> bool:
        """Choose the iteration if all these nodes have reported; return whether it was chosen now.

        What an earlier leader has chosen stays. Else it is the first that nobody has asked about.
        """
        nodes = tuple(nodes)
        if self.after is not None or not nodes or any(node not in self._asked for node in nodes):
            return False
        reports = [report for report in self._asked.values() if report.asks]
        fixed = [report.iteration for report in reports if report.fixed]
        asked = [report.iteration for report in reports if not report.fixed]
        self.after = max(fixed) if fixed else max(asked, default=-2) + 1
        return True
