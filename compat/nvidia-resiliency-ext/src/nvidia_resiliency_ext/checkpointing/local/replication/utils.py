"""Small helpers for sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def zip_strict(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield what ``zip`` yields.

    Raises:
        ValueError: one is shorter than the others.
    """
    return zip(*iterables, strict=True)
