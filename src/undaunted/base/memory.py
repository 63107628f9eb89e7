"""Shared memory without a name: memfds that are allocated before anybody stores into them."""

from __future__ import annotations

import errno
import fcntl
import os

# Python has no names for these before 3.13 (linux/fcntl.h).
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4


def create_memfd(name: str, size: int) -> int:
    """Create shared memory of ``size`` bytes and return its descriptor (close-on-exec).

    The memory is allocated here: where it cannot be, this fails, and not some later store with a
    SIGBUS. Its size is sealed, so that nobody it is shared with can cut it short under another.

    Args:
        name: what ``/proc/PID/fd`` shows, for people.
        size: bytes, more than 0.

    Raises:
        OSError: there is not enough memory; the message names the remedy.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise OSError(
            error.errno,
            f"cannot allocate {size} bytes of shared memory ({name}): {error.strerror}; free "
            "memory on this node or raise the memory limit of the job's cgroup",
        ) from error
    return fd
