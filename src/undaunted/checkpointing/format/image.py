"""A file that lies in memory, ready to be written."""

from __future__ import annotations

import msgspec

ALIGNMENT = 4096  # of images in the arena: what O_DIRECT asks of memory, offset and length


class Image(msgspec.Struct, frozen=True):
    """A file as it lies in the arena.

    Attributes:
        name: relative to the folder of the attempt.
        offset: bytes from the arena's start, a multiple of 4096.
        size: bytes of the file; the arena has room up to the next multiple of 4096.
    """

    name: str
    offset: int
    size: int
