"""Slow ranks, out of what each rank does by itself in a step. Pure; nothing feeds it yet.

It takes one number per rank and step: a time that holds no wait for others, such as the CPU time
of the thread. That is compared with the median of the other ranks of the same role. One step says
nothing on a noisy machine: a CUSUM adds up what is more than an allowance, and forgets the rest.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from undaunted.attribution.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALLOWANCE = 0.05  # of the median of peers: slower by less is never found
_MOST = 0.15  # of one step, or twice the spread: a few long steps are no slow rank
_HEIGHT = 1.0  # the sum at which a rank is slow, at least
_MISTAKES = 14.0  # a quiet rank passes the height with exp(-this), in one walk away from 0
_WEIGHT = 0.05  # of the newest step, in the spread
_LEAST_PEERS = 2  # of two ranks nobody knows which is the usual one


class SlowRanks:
    """Finds ranks that are slower than their peers, step by step.

    Args:
        roles: of ranks; ranks that are not in it have the role "".
        nodes: names, by rank.
    """

    def __init__(
        self, roles: Mapping[int, str] | None = None, nodes: Mapping[int, str] | None = None
    ) -> None:
        self._roles = roles or {}
        self._nodes = nodes or {}
        self._sums: dict[int, float] = defaultdict(float)
        self._lost: dict[int, float] = defaultdict(float)
        self._spread = 0.0  # usual size of a deviation, as a share of the median of peers
        self._steps = 0

    def step(self, t: float, own: Mapping[int, float], step_ms: float) -> list[Finding]:
        """Take in a step that all ranks have done; return the ranks that are slow now, worst first.

        Args:
            t: when it ended, seconds since 1970.
            own: by rank, the time without waits, ms.
            step_ms: the time of the step.
        """
        deviations = self._deviations(own)
        if not deviations:
            return []
        self._note_spread([share for share, _ in deviations.values()])
        most = max(_MOST, 2 * self._spread)
        height = max(_HEIGHT, _MISTAKES / 2 * self._spread**2 / _ALLOWANCE)
        for rank, (share, extra_ms) in deviations.items():
            more = min(math.log1p(share), most)  # noise is as likely to halve a time as to double
            total = self._sums[rank] + more - _ALLOWANCE
            self._sums[rank] = min(max(0.0, total), 2 * height)  # so that it ends, too
            lost = max(0.0, min(extra_ms / step_ms, 1.0)) if step_ms > 0 else 0.0
            self._lost[rank] += _WEIGHT * (lost - self._lost[rank])
            if not self._sums[rank]:
                self._lost[rank] = 0.0
        slow = sorted(
            (rank for rank in deviations if self._sums[rank] > height),
            key=lambda rank: -self._sums[rank],
        )
        return [self._finding(t, rank) for rank in slow]

    def _deviations(self, own: Mapping[int, float]) -> dict[int, tuple[float, float]]:
        """Return by rank how much longer than the median of its peers it took: share, ms."""
        roles = defaultdict(list)
        for rank in own:
            roles[self._roles.get(rank, "")].append(rank)
        found = {}
        for ranks in roles.values():
            if len(ranks) <= _LEAST_PEERS:
                continue
            for rank in ranks:
                usual = statistics.median_low(own[other] for other in ranks if other != rank)
                if usual > 0 and own[rank] > 0:
                    found[rank] = (own[rank] / usual - 1, own[rank] - usual)
        return found

    def _note_spread(self, shares: list[float]) -> None:
        """Half of the deviations are less than the median one: 1.48 times that is sigma."""
        spread = 1.48 * statistics.median(map(abs, shares))
        self._steps += 1
        self._spread += max(_WEIGHT, 1 / self._steps) * (spread - self._spread)

    def _finding(self, t: float, rank: int) -> Finding:
        node = self._nodes.get(rank)
        lost = math.floor(100 * self._lost[rank] + 0.5)
        return Finding(
            cause="slow_rank",
            ranks=(rank,),
            nodes=() if node is None else (node,),
            t=t,
            quote=f"rank {rank} takes longer than its peers: {lost} % of the step time are lost",
            source="times of steps",
        )
