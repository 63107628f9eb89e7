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
        self._announced = -1

    @property
    def known(self) -> bool:
        """Something has begun, or it is known who counts."""
        return self._counting is not _Counting.UNKNOWN

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

    def nobody_counts(self) -> None:
        """Count from the first update on: the script does not, as is known of it."""
        self._counting = _Counting.OURS

    def update_begins(self) -> None:
        """Count, if that is ours."""
        if self._counting is _Counting.SCRIPT:
            return
        self._counting = _Counting.OURS if self.known else _Counting.HELD
        self._go_to(self.iteration + 1)

    def begins_at(self, iteration: int) -> None:
        """Take over what the first iteration counted is, where a process goes on."""
        self.iteration = iteration
        self._announced = iteration - 1

    def news(self) -> range:
        """Return the iterations that have begun and that nobody has told of; each one once."""
        if self._counting is not _Counting.OURS:
            return range(0)
        new = range(self._announced + 1, self.iteration + 1)
        self._announced = self.iteration
        return new

    def number(self, at: str) -> int:
        """Return how many records of this kind the iteration has had before this one."""
        self._numbers[at] += 1
        return self._numbers[at] - 1

    def _go_to(self, iteration: int) -> None:
        if iteration != self.iteration:
            self._numbers.clear()
        self.iteration = iteration
