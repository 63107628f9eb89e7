"""Small helpers for sequences."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


def batched(iterable: Iterable[T], n: int) -> Iterator[tuple[T, ...]]:
    """Yield tuples of ``n`` items; the last may be shorter.

    Raises:
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        raise ValueError(f"batches of {n}")
    items = iter(iterable)
    while batch := tuple(islice(items, n)):
        yield batch


def zip_strict(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield what ``zip`` yields.

    Raises:
        ValueError: one is shorter than the others.
    """
    return zip(*iterables, strict=True)
