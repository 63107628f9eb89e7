"""Virtual time: what happens when.

Time is an integer of nanoseconds. Entries of the same moment happen in the order in which they were
made, so that a run depends on nothing but its inputs.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
# So many entries at one moment are a circle: what each of them causes is due at once, for ever.
MOST_AT_ONCE = 1_000_000


class Schedule:
    """A clock that jumps from entry to entry.

    Attributes:
        now: the time of the entry that is being carried out, in nanoseconds from the beginning.
        entries: number of entries carried out.
    """

    __slots__ = ("_heap", "_made", "entries", "now")

    def __init__(self) -> None:
        self.now = 0
        self.entries = 0
        self._heap: list[tuple[int, int, Callable[[Any], object], Any]] = []
        self._made = 0

    def at(self, time_ns: int, action: Callable[[Any], object], argument: Any) -> None:
        """Call ``action(argument)`` at a moment; one that has passed means now."""
        self._made += 1
        time_ns = max(time_ns, self.now)
        heapq.heappush(self._heap, (time_ns, self._made, action, argument))

    def run(self, until_ns: int, *, stop: Callable[[], bool] | None = None) -> None:
        """Carry out every entry up to and including a moment, and go there.

        Args:
            until_ns: the moment.
            stop: asked after each entry; True ends the run where it is.
        """
        heap = self._heap
        pop = heapq.heappop
        since = self.entries  # how many there were when time went on last
        while heap and heap[0][0] <= until_ns:
            if heap[0][0] > self.now:
                since = self.entries
            assert self.entries - since < MOST_AT_ONCE, "time stands still"
            self.now, _, action, argument = pop(heap)
            self.entries += 1
            action(argument)
            if stop is not None and stop():
                return
        self.now = max(self.now, until_ns)
