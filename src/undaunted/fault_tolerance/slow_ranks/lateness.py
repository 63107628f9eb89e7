"""The lateness of ranks at the collectives of a step, by their own clocks. Pure.

What a rank costs is bounded by it: nobody waits for a rank that is not late.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.slow_ranks.slow import ALLOWANCE, Times, late

if TYPE_CHECKING:
    from collections.abc import Mapping

_WEIGHT = 0.05  # of the newest step
_ERRORS = 2.0  # so many standard errors above its mean, a rank may still be


class Lateness:
    """The mean of the newest steps of each rank, against the median of its peers.

    One step says little where ranks wait for a core; the mean of many is known better.
    """

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._since: dict[int, float] = {}  # how long its peers took until then
        self._counts: dict[int, int] = {}
        self._spread = 0.0  # of one step, of all ranks
        self._steps = 0

    def step(self, times: Mapping[int, Times]) -> None:
        """Take in a step, or the median of a few; times as `SlowRanks.step` takes them."""
        found = late(times)
        if not found:
            return
        self._steps += 1
        spread = 1.48 * statistics.median(abs(by) for by, _ in found.values())
        self._spread += max(_WEIGHT, 1 / self._steps) * (spread - self._spread)
        for rank, (by, since) in found.items():
            self._since[rank] = since
            count = self._counts[rank] = self._counts.get(rank, 0) + 1
            before = self._means.get(rank, by)
            self._means[rank] = before + max(_WEIGHT, 1 / count) * (by - before)

    def is_late(self, rank: int) -> bool:
        """Return whether it is so by more than is allowed."""
        return rank in self._means and self._means[rank] > ALLOWANCE * self._since[rank]

    def mean(self, rank: int) -> float:
        """Return how late it is, in the unit of the times; infinite where nothing is known."""
        return self._means.get(rank, math.inf)

    def most(self, rank: int) -> float:
        """Return its greatest lateness, in the unit of the times; infinite = nothing is known."""
        if rank not in self._means:
            return math.inf
        of_steps = max(_WEIGHT / (2 - _WEIGHT), 1 / self._counts[rank])
        return self.mean(rank) + _ERRORS * self._spread * math.sqrt(of_steps)
