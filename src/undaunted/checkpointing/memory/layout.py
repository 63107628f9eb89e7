"""Where everything lies in a data file: arithmetic, the same on every rank that does it.

Tensors in frames come first, each at a multiple of 64 bytes. Everything else follows, each item 8
bytes past a multiple of 64: the place of an item says which of the two it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from undaunted.checkpointing.format.frame import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of an item without a frame, from a multiple of 64.
_UNFRAMED = 8


class Place(NamedTuple):
    """Of an item in its file, in bytes."""

    offset: int
    length: int


def place_frames(lengths: Iterable[int]) -> list[Place]:
    """Return the places of framed tensors of these lengths, from the start of the file."""
    places = []
    at = 0
    for length in lengths:
        places.append(Place(at, length))
        at = _round_up(at + length)
    return places


def place_others(frames: list[Place], lengths: Iterable[int]) -> list[Place]:
    """Return the places of items without a frame, which follow the framed ones."""
    places = []
    at = end_of(frames)
    for length in lengths:
        at = _round_up(at) + _UNFRAMED
        places.append(Place(at, length))
        at += length
    return places


def end_of(places: list[Place]) -> int:
    """Return where the last item ends."""
    return places[-1].offset + places[-1].length if places else 0


def is_framed(offset: int) -> bool:
    """Whether an item that begins here is a tensor in a frame."""
    return offset % ALIGNMENT == 0


def _round_up(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
