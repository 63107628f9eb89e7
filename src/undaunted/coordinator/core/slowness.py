"""Ranks that have been slow for long, in the round that runs. Pure.

What is done about them costs a restart and the work since the last checkpoint. So it takes ranks
that cost enough, of one node only, and the same ones for as long as the user has chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.coordinator.core.messages import Slow

LEAST_LOST = 0.1  # share of the time that a rank costs; nothing is done about less
MOST_EXCLUDED = 3  # nodes of a job, for whatever reason; then none is left out for being slow


@dataclass(slots=True)
class Slowness:
    """Slow ranks of one round.

    Attributes:
        ranks: that are slow now, and cost enough.
        lasted: they have been the same ones for as long as the user has chosen.
        said: that their node is kept all the same.
    """

    ranks: dict[int, Slow] = field(default_factory=dict)
    lasted: bool = False
    said: bool = False

    def note(self, news: Iterable[Slow]) -> bool:
        """Take in what is new; return whether the time begins anew."""
        changed = False
        for slow in news:
            counts = not slow.over and slow.lost >= LEAST_LOST
            changed = changed or counts != (slow.rank in self.ranks)
            self.ranks.pop(slow.rank, None)
            if counts:
                self.ranks[slow.rank] = slow
        if not changed:
            return False
        self.lasted = self.said = False
        return bool(self.ranks)

    @property
    def worst(self) -> Slow | None:
        """The rank that costs the most, if it has lasted and slow ranks are on one node only."""
        if not self.lasted or len({slow.node for slow in self.ranks.values()}) != 1:
            return None
        return max(self.ranks.values(), key=lambda slow: slow.lost)
