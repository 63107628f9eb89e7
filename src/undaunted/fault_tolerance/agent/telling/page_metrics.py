"""From pages to what metrics tell of ranks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.journal.metrics.now import Now, RankNow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.progress.snapshot import PageSnapshot

_NS = 1_000_000_000


def now_of(
    pages: Mapping[int, PageSnapshot], t: int, events_lost: int, *, leads: bool = False
) -> Now:
    """Return what pages show.

    Args:
        pages: by global rank.
        t: when they were read, CLOCK_MONOTONIC, nanoseconds.
        events_lost: events missing in the journal.
        leads: this node leads a job of several.
    """
    ranks = tuple(rank_now(rank, page, t) for rank, page in pages.items() if not page.problem)
    return Now(t=t, ranks=ranks, steps=_steps(pages), events_lost=events_lost, leads=leads)


def rank_now(rank: int, page: PageSnapshot, t: int) -> RankNow:
    """Return what one page shows at ``t``."""
    opened = {
        name: _since(section.open_since_ns, t)
        for name, section in page.sections.items()
        if section.open_since_ns is not None
    }
    return RankNow(
        rank=rank,
        phase=page.phase.name.lower(),
        iteration=page.iteration,
        step_s=_step_s(page),
        heartbeat_age_s=None if page.heartbeat_ns is None else _since(page.heartbeat_ns, t),
        heartbeat_longest_s=page.heartbeat_max_ns / _NS if page.heartbeat_max_ns else None,
        sections=opened,
    )


def _since(moment_ns: int, t: int) -> float:
    return max(0, t - moment_ns) / _NS


def _step_s(page: PageSnapshot) -> float | None:
    ends = (page.first_iteration, page.iteration, page.first_step_ns, page.iteration_ns)
    first, last, first_ns, last_ns = ends
    if first is None or last is None or first_ns is None or last_ns is None or last <= first:
        return None
    return max(0, last_ns - first_ns) / (last - first) / _NS


def _steps(pages: Mapping[int, PageSnapshot]) -> tuple[int, int, int] | None:
    begun = [
        (page.iteration, page.iteration_ns, page.first_iteration)
        for page in pages.values()
        if page.iteration is not None and page.iteration_ns and page.first_iteration is not None
    ]
    if not begun:
        return None
    last, last_ns, _ = max(begun)
    return min(first for _, _, first in begun), last, last_ns
