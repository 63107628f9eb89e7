"""A page of memory in which the writer shows how far it is; the trainer looks without asking.

Three words of 64 bits: when there was progress last (nanoseconds of the monotonic clock, which is
one for all processes of a machine), the number of the job, and how many bytes of it are written.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from undaunted.base.memory import create_memfd

_SIZE = 4096


class Progress(NamedTuple):
    """How far the writer is.

    Attributes:
        at_s: when it made progress last, seconds of the monotonic clock; 0 = never.
        job: which one it is at.
        bytes: of this job that are written.
    """

    at_s: float
    job: int
    bytes: int


def create() -> int:
    """Return the descriptor of a new page; OSError when there is no memory."""
    return create_memfd("undaunted-writer", _SIZE)


class Page:
    """A mapping of the page."""

    def __init__(self, fd: int) -> None:
        """Map it, and close the descriptor."""
        try:
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")

    def show(self, now_ns: int, job: int, count: int) -> None:
        """For the writer: there is progress."""
        self._words[1] = job
        self._words[2] = count
        self._words[0] = now_ns

    def look(self) -> Progress:
        """For the trainer: how far it is."""
        return Progress(self._words[0] / 1e9, self._words[1], self._words[2])

    def close(self) -> None:
        """Release the mapping."""
        self._words.release()
        self._map.close()
