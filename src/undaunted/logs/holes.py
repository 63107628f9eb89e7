"""Giving back the disk space of the beginning of a file that others append to."""

from __future__ import annotations

import ctypes
import os

_KEEP_SIZE_PUNCH_HOLE = 0x1 | 0x2  # flags of fallocate(2)


def free(fd: int, begin: int, end: int) -> bool:
    """Free the space from ``begin`` to ``end``, which reads as zeros then.

    Positions stay as they are, so neither those who write to the file nor those who read from it
    notice.

    Returns:
        False if the file system cannot do that.
    """
    length = ctypes.c_int64(end - begin)
    libc = ctypes.CDLL(None, use_errno=True)
    failed: int = libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(begin), length)
    return not failed


def data_from(fd: int, position: int) -> int:
    """Return where the file has data again, from ``position`` on, whose beginning may be freed.

    That is ``position`` if it has data there, or none behind it. Call it after a read: bytes that
    were read before that position are zeros, since they were freed meanwhile.
    """
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError:  # at the end of the file, or the file system does not say
        return position
