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
# The launchers of a job do not start at the same moment.
SEEK_QUIETLY_S = 3.0


@dataclass(slots=True)
class Search:
    """Of one follower.

    Attributes:
        config: of the follower.
        first: addresses to try before all others.
        elected: address of the leader, as the store says; "" = it does not.
        last: address of the leader that was followed last, "" = none was.
    """

    config: FollowerConfig
    first: list[str] = field(default_factory=list)
    elected: str = ""
    last: str = ""
    _said: str = ""
    _ever_found: bool = False
    _tried: int = 0
    _pause_s: float = REDIAL_FIRST_S

    def address(self, *tables: Sequence[p.Seat]) -> str:
        """Where to look next: an endpoint and a member of these tables, in turns; "" = unknown."""
        if self.first:
            return self.first.pop(0)
        number, member = divmod(self._tried, 2)
        self._tried += 1
        end = self._end(number)
        return (self._member(number, tables) if member or not end else "") or end

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
        self.first, self._tried, self.last = [self.elected or last], 0, last

    def remark(self, why: str, idle_s: float) -> str:
        """What to say about an attempt that came to nothing, "" = nothing new."""
        if idle_s < SEEK_QUIETLY_S or self._said == why:
            return ""
        self._said = why
        return f"looking for the coordinator (up to {self.limit_s:g} s): {why}"

    def in_vain(self, why: str) -> str:
        """Why it was given up."""
        where = self.config.store or f"--rdzv-endpoint {', '.join(self.config.endpoints)}"
        return f"no coordinator for {self.limit_s:g} s ({where}): {why}"

    def _end(self, number: int) -> str:
        """Where to look besides the members: a leader need not be one of them."""
        if self.elected:
            return self.elected
        ends = self.config.endpoints
        if self.last and not self.config.store:
            number, again = divmod(number, 2)
            if again:  # it may have been away for a moment only
                return self.last
        return ends[number % len(ends)] if ends else ""

    def _member(self, number: int, tables: Sequence[Sequence[p.Seat]]) -> str:
        known = [table for table in tables if table]
        if not known:
            return ""
        number, which = divmod(number, len(known))
        table = known[which]
        for seat in (table[number % len(table)], table[(number + 1) % len(table)]):
            if seat.address and seat.address != self.config.address:
                return seat.address
        return ""
