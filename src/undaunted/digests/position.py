"""Which iteration a record belongs to. Pure.

A script that calls ``undaunted.step`` says so itself. For one that does not, iterations are
counted: one for each update of the parameters. Which of them a script is shows when its second
update begins. What was recorded before that is held back, and forgotten if the script counts after
all: it belongs to an iteration whose number nobody knows.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum


class _Counting(Enum):
    UNKNOWN = "no update has begun"
    HELD = "one update has begun, nobody has counted"
    OURS = "we count"
    SCRIPT = "the script counts"


class Position:
    """Follows one rank.

    Attributes:
        iteration: the one under way, -1 before the first.
    """

    def __init__(self) -> None:
        """Begin before the first iteration."""
        self.iteration = -1
        self._counting = _Counting.UNKNOWN
        self._numbers: Counter[str] = Counter()

    @property
    def counted(self) -> bool:
        """The iteration is counted by us."""
        return self._counting in (_Counting.HELD, _Counting.OURS)

    @property
    def held(self) -> bool:
        """What is recorded now has to wait."""
        return self._counting is _Counting.HELD

    def told(self, iteration: int) -> None:
        """Take over what the script says."""
        self._counting = _Counting.SCRIPT
        # One that goes back repeats iterations in the same process: their records are first again.
        self._go_to(iteration)

    def update_begins(self) -> tuple[int, ...]:
        """Count, if that is ours; return the iterations that begin and nobody has told of."""
        if self._counting is _Counting.SCRIPT:
            return ()
        self._go_to(self.iteration + 1)
        if self._counting is _Counting.UNKNOWN:
            self._counting = _Counting.HELD
            return ()
        first = 0 if self.held else self.iteration
        self._counting = _Counting.OURS
        return tuple(range(first, self.iteration + 1))

    def number(self, at: str) -> int:
        """Return how many records of this kind the iteration has had before this one."""
        self._numbers[at] += 1
        return self._numbers[at] - 1

    def _go_to(self, iteration: int) -> None:
        if iteration != self.iteration:
            self._numbers.clear()
        self.iteration = iteration
