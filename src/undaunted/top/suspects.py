"""The rank that keeps the others waiting, and slow ranks: guesses from pages alone. Pure.

The launcher blames nobody before a limit has passed and stacks are gathered; this looks earlier and
at less, so it says "suspect".
"""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.top.ranks import Rank

# A rank is quiet when it has shown nothing for so many of its steps, and for so long.
_STEPS = 3.0
_LEAST_S = 2.0
_WITHOUT_STEPS_S = 30.0  # as long as nobody knows how long a step takes
# ... or longer than its section has ever taken, times this.
_LONGER = 1.5
# A rank is slow when it is so much above the median, and so far out of the spread of the others.
_SLOWER = 1.15
_SPREADS = 5.0
_LEAST_SPREAD = 0.01
# Of ranks that stand still, those that use so much of a core are at work, or wait.
_AT_WORK = 0.5
_WAITS = 0.1
_TO_SIGMA = 1.4826  # from the median absolute deviation to the standard one


def suspects(ranks: Sequence[Rank]) -> dict[int, str]:
    """Return why each suspect is one, by rank; nobody while all go on, or most wait alike."""
    found = {rank.rank: "stopped by a signal" for rank in ranks if rank.state in ("T", "t")}
    watched = [rank for rank in ranks if rank.watched]
    quiet = _quiet(watched)
    moving = len(watched) - len(quiet)
    if quiet and moving >= len(quiet):  # if most are quiet, they wait for those that go on
        others = "the other goes on" if moving == 1 else f"{moving} others go on"
        for rank in quiet:
            found.setdefault(rank.rank, f"{_stands(rank)}, {others}")
    elif len(quiet) > 1 and not moving:
        found = {**_apart(quiet), **found}
    return found


def slow(values: Mapping[int, float]) -> dict[int, float]:
    """Return by how much some are above the median, 0.3 = 30 %: those far out of the spread.

    Args:
        values: times by rank; with less than three nobody can be told to be slow.
    """
    if len(values) < 3:
        return {}
    middle = median(values.values())
    spread = _TO_SIGMA * median(abs(value - middle) for value in values.values())
    limit = middle + _SPREADS * max(spread, _LEAST_SPREAD * middle)
    return {
        rank: value / middle - 1
        for rank, value in values.items()
        if middle > 0 and value > limit and value > _SLOWER * middle
    }


def _quiet(watched: Sequence[Rank]) -> list[Rank]:
    """Return those that have shown nothing for longer than is usual."""
    steps = [rank.step_s for rank in watched if rank.step_s is not None]
    patience_s = max(_LEAST_S, _STEPS * median(steps)) if steps else _WITHOUT_STEPS_S
    return [
        rank
        for rank in watched
        if rank.still_s is not None
        and rank.still_s > max(patience_s, _LONGER * rank.section_longest_s)
    ]


def _apart(quiet: Sequence[Rank]) -> dict[int, str]:
    """All are quiet: who is not where most of them are?"""
    iterations = Counter(rank.iteration for rank in quiet if rank.iteration is not None)
    if len(iterations) > 1:
        last = max(iterations)
        behind = [rank for rank in quiet if rank.iteration is not None and rank.iteration < last]
        if len(behind) < len(quiet):
            return {
                rank.rank: f"{_stands(rank)}, at iteration {rank.iteration}, others at {last}"
                for rank in behind
            }
    places = Counter(rank.section for rank in quiet)
    (common, most), *others = places.most_common()
    if not others or most <= len(quiet) / 2:
        return _at_work(quiet)
    where = f"in {common!r}" if common else "outside sections"
    return {
        rank.rank: f"{_stands(rank)}, the others are {where}"
        for rank in quiet
        if rank.section != common
    }


def _at_work(quiet: Sequence[Rank]) -> dict[int, str]:
    """All are quiet in the same place: what does the kernel say of those that are not like most?"""
    held = [rank for rank in quiet if rank.state == "D"]
    if held and len(held) < len(quiet) / 2:
        why = "its process waits for a disk, a file system or a device"
        return {rank.rank: f"{_stands(rank)}, {why}" for rank in held}
    busy = [rank for rank in quiet if rank.cpu is not None and rank.cpu >= _AT_WORK]
    waiting = [rank for rank in quiet if rank.cpu is not None and rank.cpu <= _WAITS]
    # The other way round means nothing: ranks that wait for a GPU are busy with that.
    if len(busy) >= len(waiting) or len(busy) + len(waiting) < len(quiet):
        return {}
    return {
        rank.rank: f"{_stands(rank)}, at work ({rank.cpu:.0%} of a core), the others wait"
        for rank in busy
    }


def _stands(rank: Rank) -> str:
    assert rank.still_s is not None
    where = f" in {rank.section!r}" if rank.section else ""
    return f"still{where} for {format_duration(rank.still_s)}"


def standstill(ranks: Sequence[Rank]) -> str:
    """Say that all or most ranks wait, "" if they do not."""
    watched = [rank for rank in ranks if rank.watched]
    quiet = _quiet(watched)
    silent = {rank.rank for rank in quiet}
    going = [rank.rank for rank in watched if rank.rank not in silent]
    if len(quiet) < 2 or len(quiet) <= len(going):
        return ""
    least_s = min(rank.still_s or 0.0 for rank in quiet)
    who = format_ranks(rank.rank for rank in quiet)
    but = f", not {format_ranks(going)}" if going else ""
    return f"ranks {who} stand still for {format_duration(least_s)}{but}"
