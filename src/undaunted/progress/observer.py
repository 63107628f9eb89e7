"""Collects what the pages of one round show. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.progress.histogram import BUCKETS, bounds, bucket
from undaunted.progress.samples import (
    HEARTBEAT,
    OUT_OF_SECTION,
    SECTION,
    START,
    WARMUP,
    Knowledge,
    Samples,
    bounded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.progress.snapshot import PageSnapshot


@dataclass(slots=True)
class _Tally:
    """One kind of sample of one rank. What came before ``baseline`` was warm-up."""

    baseline: Sequence[int]
    counts: list[int] = field(default_factory=list)
    longest_ns: int = 0

    def update(self, histogram: Sequence[int], longest_ns: int) -> None:
        counts = [now - before for now, before in zip(histogram, self.baseline, strict=True)]
        if min(counts) < 0:  # another process has the page: begin anew
            self.baseline, counts = histogram, [0] * BUCKETS
        top = max((index for index, count in enumerate(counts) if count), default=None)
        self.counts = counts
        # The page's longest may have been in the warm-up; the bucket tells.
        self.longest_ns = 0 if top is None else min(bounds(top)[1], longest_ns)


class Observer:
    """Collects what the pages of one round show. The first few samples of a rank are left out.

    Args:
        world_size: number of ranks of the job.
        began_ns: when the round began, CLOCK_MONOTONIC.
        counts_start: whether its start and its warm-up are samples. Those of a program that is not
            known well are not, as it may have no checkpoint to load yet; only how long they took is
            kept, as they may have filled caches.
    """

    def __init__(self, world_size: int, began_ns: int, *, counts_start: bool) -> None:
        self._world_size = world_size
        self._began_ns = began_ns
        self._counts_start = counts_start
        self._tallies: dict[tuple[int, str], _Tally] = {}
        self._once: dict[str, int] = {}  # what a round shows once: the longest of all ranks
        self._started: set[int] = set()
        self._first_ns: dict[int, int] = {}
        self._latest_ns: dict[int, int] = {}
        self._names: set[str] = set()

    def look(self, index: int, page: PageSnapshot, warmup: int) -> None:
        """Take in what the page of local rank ``index`` says now."""
        if page.problem:
            return
        warmup = warmup_of(page, warmup)
        self._look_at_start(index, page)
        self._names.update(page.sections)
        for key, used, histogram, longest_ns in _kinds(page):
            if used > warmup and histogram:
                self._update(index, key, histogram, longest_ns)
        latest_ns = _latest_ns(page)
        if latest_ns is not None and any(rank == index for rank, _ in self._tallies):
            self._first_ns.setdefault(index, latest_ns)
            self._latest_ns[index] = max(latest_ns, self._latest_ns.get(index, 0))

    def seen(self) -> Knowledge:
        """What the round has shown so far: in each bucket the most that any rank has counted.

        So what a single rank does, such as saving a checkpoint, is not diluted by the others.
        """
        kinds = {key for _, key in self._tallies} | {SECTION + name for name in self._names}
        samples = {key: self._samples(key) for key in sorted(kinds)}
        for key, longest_ns in sorted(self._once.items()):
            counts = {bucket(longest_ns): 1} if self._counts_start else {}
            samples[key] = Samples(counts, longest_ns)
        spans = [self._latest_ns[index] - first for index, first in self._first_ns.items()]
        return Knowledge(
            world_size=self._world_size,
            observed_ns=bounded(max(spans, default=0)),
            samples=samples,
        )

    def _look_at_start(self, index: int, page: PageSnapshot) -> None:
        first_ns = page.first_heartbeat_ns
        if first_ns is None or index in self._started:
            return
        self._started.add(index)  # a later initialisation is none of the round
        if first_ns > self._began_ns:
            self._note_once(START, first_ns - self._began_ns)

    def _update(self, index: int, key: str, histogram: Sequence[int], longest_ns: int) -> None:
        tally = self._tallies.get((index, key))
        if tally is None:
            tally = self._tallies[index, key] = _Tally(histogram)
            self._note_once(WARMUP + key, longest_ns)
        tally.update(histogram, longest_ns)

    def _note_once(self, key: str, ns: int) -> None:
        self._once[key] = max(bounded(ns), self._once.get(key, 0))

    def _samples(self, key: str) -> Samples:
        tallies = [tally for (_, of), tally in self._tallies.items() if of == key]
        most = map(max, zip(*(tally.counts for tally in tallies), strict=True))
        counts = {index: bounded(count) for index, count in enumerate(most) if count}
        longest_ns = max((tally.longest_ns for tally in tallies), default=0)
        return Samples(counts, bounded(longest_ns))


def warmup_of(page: PageSnapshot, configured: int) -> int:
    """How many heartbeats, or uses of each section, of this rank are warm-up."""
    return configured if page.warmup_iterations is None else page.warmup_iterations


def _kinds(page: PageSnapshot) -> Iterator[tuple[str, int, Sequence[int], int]]:
    """Kind, how many (one more than gaps, for gaps), histogram, longest."""
    yield HEARTBEAT, page.heartbeat_count, page.heartbeat_histogram, page.heartbeat_max_ns
    outside = page.outside_histogram
    yield OUT_OF_SECTION, sum(outside) + 1, outside, page.outside_max_ns
    for name, section in page.sections.items():
        yield SECTION + name, section.count + 1, section.histogram, section.max_ns


def _latest_ns(page: PageSnapshot) -> int | None:
    """When the rank last did something that is watched."""
    times = [page.heartbeat_ns, page.out_of_section_since_ns]
    times += [section.open_since_ns for section in page.sections.values()]
    return max((time for time in times if time is not None), default=None)
