"""Slow ranks, out of what each rank does by itself in a step. Pure.

It compares times that hold no wait for others, see `own_times`, with the median of the other ranks
of the same role. One step says nothing on a noisy machine: a CUSUM adds up what is more than an
allowance, and forgets the rest.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

ALLOWANCE = 0.05  # of the median of peers: slower by less is never found
_MOST = 0.15  # of one step, or twice the spread: a few long steps are no slow rank
_HEIGHT = 1.0  # the sum at which a rank is slow, at least
_MISTAKES = 14.0  # a quiet rank passes the height with exp(-this), in one walk away from 0
_WEIGHT = 0.05  # of the newest step, in the spread
_LEAST_PEERS = 2  # of two ranks nobody knows which is the usual one
_FEWEST, _MANY = 8, 64  # of the newest steps: so many say whether a slow rank still is
_LEAST = 0.1  # of a time: a rank cannot be faster than that


class Times(NamedTuple):
    """The times of one rank and step that are compared.

    Attributes:
        own: times from the beginning of the step without waits, in any unit; where a wait may be in
            the later ones, the earlier ones still say who is late.
        step: the time of the step.
        role: ranks are compared with ranks of the same.
        most: what is said of a rank is at most this much longer than its peers; a rank may be found
            by what is less certain.
    """

    own: Sequence[float]
    step: float
    role: Hashable = None
    most: float = math.inf


class _Shares(NamedTuple):
    """How much longer than its peers a rank took.

    Attributes:
        more: as a share of their time.
        slower, lost: what of it is said, as a share of their time, and of the step.
    """

    more: float
    slower: float
    lost: float


@dataclass(slots=True)
class _Walk:
    """What one rank was slower than its peers, since it was not."""

    total: float = 0.0
    steps: int = 0
    slower: float = 0.0
    lost: float = 0.0


@dataclass(slots=True)
class _Since:
    """Of a rank that is slow: the newest steps since it was found, and how many are missing."""

    slower: deque[float] = field(default_factory=lambda: deque(maxlen=_MANY))
    lost: deque[float] = field(default_factory=lambda: deque(maxlen=_MANY))
    missing: int = 0  # in a row


class SlowRanks:
    """Finds ranks that are slower than their peers, step by step.

    A rank is slow no more when the sum is used up, when it was not slower in the newest steps, or
    when it cannot be compared any more.

    Attributes:
        compared: the ranks that could be compared in the newest step.
    """

    def __init__(self) -> None:
        self.compared: set[int] = set()
        self._walks: dict[int, _Walk] = defaultdict(_Walk)
        self._slow: dict[int, _Since] = {}
        self._spread = 0.0  # usual size of a deviation, as a share of the median of peers
        self._steps = 0

    @property
    def slow(self) -> set[int]:
        """Ranks that are slow now."""
        return set(self._slow)

    def step(self, times: Mapping[int, Times]) -> None:
        """Take in a step, or the median of a few, that these ranks have done."""
        shares = _shares(times)
        self.compared = set(shares)
        for rank in self.slow - shares.keys():
            self._slow[rank].missing += 1
            if self._slow[rank].missing == _FEWEST:
                self._end(rank)
        if not shares:
            return
        self._note_spread([each.more for each in shares.values()])
        most = max(_MOST, 2 * self._spread)
        height = max(_HEIGHT, _MISTAKES / 2 * self._spread**2 / ALLOWANCE)
        for rank, (share, slower, lost) in shares.items():
            walk = self._walks[rank]
            # Noise is as likely to halve a time as to double it.
            more = min(math.log1p(max(share, _LEAST - 1)), most)
            walk.total = min(walk.total + more - ALLOWANCE, 2 * height)
            if walk.total <= 0 or self._is_over(rank, more, lost):
                self._end(rank)
                continue
            walk.steps += 1
            walk.slower += slower
            walk.lost += lost
            if walk.total > height:
                self._slow.setdefault(rank, _Since())

    def of(self, rank: int) -> tuple[float, float]:
        """By which share a rank was slower than its peers; which share of the steps it has cost."""
        walk = self._walks[rank]
        return walk.slower / max(1, walk.steps), walk.lost / max(1, walk.steps)

    def costs(self, rank: int) -> float | None:
        """Return the share of the newest steps that a slow rank costs; None = not known yet."""
        since = self._slow.get(rank)
        if since is None or since.missing or len(since.lost) < self._newest:
            return None
        return _mean_of_last(since.lost, self._newest)

    @property
    def _newest(self) -> int:
        """So many steps tell the allowance from noise."""
        return max(_FEWEST, min(_MANY, round((2 * self._spread / ALLOWANCE) ** 2)))

    def _is_over(self, rank: int, more: float, lost: float) -> bool:
        since = self._slow.get(rank)
        if since is None:
            return False
        since.missing = 0
        since.slower.append(more)
        since.lost.append(lost)
        known = len(since.slower) >= self._newest
        return known and _mean_of_last(since.slower, self._newest) < ALLOWANCE

    def _end(self, rank: int) -> None:
        self._walks[rank] = _Walk()
        self._slow.pop(rank, None)

    def _note_spread(self, shares: Iterable[float]) -> None:
        """Half of the deviations are less than the median one: 1.48 times that is sigma."""
        spread = 1.48 * statistics.median(abs(share) for share in shares)
        self._steps += 1
        self._spread += max(_WEIGHT, 1 / self._steps) * (spread - self._spread)


def _mean_of_last(values: deque[float], count: int) -> float:
    return sum(islice(reversed(values), count)) / count


def late(times: Mapping[int, Times]) -> dict[int, tuple[float, float]]:
    """By rank, how much longer than its peers it took, and how long they took until then."""
    roles = defaultdict(list)
    for rank, one in times.items():
        if one.own and one.own[-1] > 0 and one.step > 0:
            roles[one.role, len(one.own)].append(rank)
    found = {}
    for ranks in roles.values():
        if len(ranks) <= _LEAST_PEERS:
            continue
        moments = [sorted(each) for each in zip(*(times[rank].own for rank in ranks), strict=True)]
        for rank in ranks:
            own = times[rank].own
            usual = [_median_of_others(each, mine) for each, mine in zip(moments, own, strict=True)]
            by, since = max((mine - one, one) for mine, one in zip(own, usual, strict=True))
            # What comes behind may be a wait; shortly after the beginning little is much.
            found[rank] = by, max(since, usual[-1] / 2)
    return found


def _shares(times: Mapping[int, Times]) -> dict[int, _Shares]:
    found = {}
    for rank, (by, since) in late(times).items():
        one = times[rank]
        lost = max(0.0, min(by, one.most) / one.step)
        # Who is found is slower than the allowance, though the rest of it may not be certain.
        slower = min(by, max(one.most, ALLOWANCE * since)) / since
        found[rank] = _Shares(by / since, slower, min(lost, 1.0))
    return found


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """The lower median without one of the values."""
    middle = (len(ordered) - 2) // 2
    return ordered[middle + (bisect_left(ordered, own) <= middle)]
