"""Naming many ranks in few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALL = 16  # up to so many ranks are all named
_FEW = 32  # up to so many, the first and last _FEW_ENDS are
_FEW_ENDS = 3
_MANY_ENDS = 5


def format_interrupted_ranks(ranks: Iterable[int]) -> str:
    """Name ranks for a log line, in their order, each once.

    Up to 16 are all named. Of 17 to 32 the first and last 3 are named; of more, the first and last
    5, and how many there are: ``0, 1, 2, 3, 4, ..., 59, 60, 61, 62, 63 (64 ranks)``.
    """
    ordered = sorted(set(ranks))
    if len(ordered) <= _ALL:
        return ", ".join(map(str, ordered)) or "none"
    ends = _FEW_ENDS if len(ordered) <= _FEW else _MANY_ENDS
    first, last = (", ".join(map(str, part)) for part in (ordered[:ends], ordered[-ends:]))
    total = f" ({len(ordered)} ranks)" if len(ordered) > _FEW else ""
    return f"{first}, ..., {last}{total}"


def rank_prefix(rank: int, world_size: int) -> str:
    """Prefix of a line of a rank: ``" 7: "`` in a job of 16, so that lines stand in columns."""
    return f"{rank:>{len(str(max(0, world_size - 1)))}}: "
