"""Words that several findings use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import format_ranks

if TYPE_CHECKING:
    from collections.abc import Collection


def name_ranks(ranks: Collection[int]) -> str:
    """Return ``rank 3``, or ``ranks 0-2,7``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks)}"
