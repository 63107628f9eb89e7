"""Where a follower looks for a leader, and how long it pauses between its attempts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.core.follower_messages import FollowerConfig

REDIAL_FIRST_S = 0.05
REDIAL_LONGEST_S = 1.0


@dataclass(slots=True)
class Search:
    """Of one follower.

    Attributes:
        config: of the follower.
        first: addresses to try before all others.
        elected: address of the leader, as the store says; "" = it does not.
    """

    config: FollowerConfig
    first: list[str] = field(default_factory=list)
    elected: str = ""
    _ever_found: bool = False
    _tried: int = 0
    _pause_s: float = REDIAL_FIRST_S

    def address(self, table: Sequence[p.Seat]) -> str:
        """Where to look next: an endpoint and a member of the table, in turns; "" = unknown."""
        if self.first:
            return self.first.pop(0)
        ends = (self.elected,) if self.elected else self.config.endpoints
        number, self._tried = self._tried // 2, self._tried + 1
        if (self._tried % 2 == 0 or not ends) and table:
            for seat in (table[number % len(table)], table[(number + 1) % len(table)]):
                if seat.address and seat.address != self.config.address:
                    return seat.address
        return ends[number % len(ends)] if ends else ""

    def pause_s(self) -> float:
        """How long to wait before the next attempt."""
        if self.first:
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, REDIAL_LONGEST_S)
        return pause_s

    def found(self) -> None:
        """A leader has welcomed this node."""
        self._pause_s, self._ever_found = REDIAL_FIRST_S, True

    @property
    def limit_s(self) -> float:
        """How long to look for one."""
        first_s = None if self._ever_found else self.config.first_give_up_s
        return self.config.give_up_s if first_s is None else first_s

    def begin(self, last: str) -> None:
        """The leader at ``last`` is gone: look there first."""
        self.first, self._tried = [self.elected or last], 0
