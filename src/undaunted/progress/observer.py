"""Collects what the pages of one round show. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.progress.samples import (
    HEARTBEAT,
    OUT_OF_SECTION,
    SECTION,
    Knowledge,
    Samples,
    bounded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.progress.snapshot import PageSnapshot


class Observer:
    """Collects what the pages of one round show. The warm-up of a rank is no sample.

    Args:
        world_size: number of ranks of the job.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._samples: dict[str, Samples] = {}
        self._first_ns: dict[int, int] = {}
        self._latest_ns: dict[int, int] = {}

    def look(self, index: int, page: PageSnapshot, warmup: int) -> None:
        """Take in what the page of local rank ``index`` says now."""
        if page.problem:
            return
        warmup = warmup_of(page, warmup)
        warm = False
        for key, count, longest_ns, ever_ns in _kinds(page):
            seen = Samples(0, bounded(longest_ns), bounded(ever_ns))
            known = self._samples.get(key, seen)
            # The most of any rank: what one does alone, as to save, counts as if all did it.
            self._samples[key] = known.with_longest(seen, max(known.count, count - warmup))
            warm = warm or count >= warmup
        latest_ns = page.latest_ns
        if latest_ns is not None and warm:
            self._first_ns.setdefault(index, latest_ns)
            self._latest_ns[index] = max(latest_ns, self._latest_ns.get(index, 0))

    def seen(self) -> Knowledge:
        """Return the durations that the round has shown so far."""
        spans = [self._latest_ns[index] - first for index, first in self._first_ns.items()]
        return Knowledge(
            world_size=self._world_size,
            observed_ns=bounded(max(spans, default=0)),
            samples=dict(sorted(self._samples.items())),
        )


def warmup_of(page: PageSnapshot, configured: int) -> int:
    """Return how many heartbeats, or uses of each section, of this rank are warm-up."""
    return configured if page.warmup_iterations is None else page.warmup_iterations


def _kinds(page: PageSnapshot) -> Iterator[tuple[str, int, int, int]]:
    """Kind, how many, longest after the warm-up, longest of all."""
    if page.heartbeat_count > 1:
        gaps = page.heartbeat_count - 1
        yield HEARTBEAT, gaps, page.heartbeat_warm_max_ns, page.heartbeat_max_ns
    if page.outside_count:
        yield OUT_OF_SECTION, page.outside_count, page.outside_warm_max_ns, page.outside_max_ns
    for name, section in page.sections.items():
        yield SECTION + name, section.count, section.warm_max_ns, section.max_ns
