"""A rank's page, mapped for reading."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING

from undaunted.inprocess.core.reading import PAGE_BYTES, decode

if TYPE_CHECKING:
    from undaunted.inprocess.core.reading import Reading

# Python has no names for these before 3.13 (linux/fcntl.h).
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2


class Page:
    """A mapping, to be closed."""

    def __init__(self, fd: int) -> None:
        """Map what ``fd`` refers to; ``fd`` is closed in any case.

        Raises:
            OSError: it cannot be mapped, or is no memory that stays as long as it is: reading it
                could end this process.
        """
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
            if not seals & _F_SEAL_SHRINK or os.fstat(fd).st_size < PAGE_BYTES:
                raise OSError("it is no sealed memory of a page's size")
            self._map = mmap.mmap(fd, PAGE_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(fd)

    def read(self) -> Reading | None:
        """Return what it says, None = it is not understood."""
        return decode(self._map[:PAGE_BYTES])

    def close(self) -> None:
        """Give the mapping back."""
        self._map.close()
