"""Files in memory, without a name; shared memory is allocated before anybody stores into it."""

from __future__ import annotations

import errno
import fcntl
import os

from undaunted.base.process import system_call

# Builds of Python for older C libraries have no names for these (linux/memfd.h).
_MFD_CLOEXEC = 1
_MFD_ALLOW_SEALING = 2
# The number of the system call; 279 is that of arm64, riscv64, loongarch64 and later ones.
_NR_MEMFD_CREATE = {"x86_64": 319, "ppc64le": 360, "s390x": 350}
_NR_MEMFD_CREATE_ELSEWHERE = 279
# Python has no names for these before 3.13 (linux/fcntl.h).
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4


def open_memfd(name: str, *, sealing: bool = False) -> int:
    """Open an empty file in memory and return its descriptor (close-on-exec).

    Args:
        name: what ``/proc/PID/fd`` shows, for people.
        sealing: its size may be sealed later.

    Raises:
        OSError: the kernel refused.
    """
    flags = _MFD_CLOEXEC | (_MFD_ALLOW_SEALING if sealing else 0)
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    number = _NR_MEMFD_CREATE.get(os.uname().machine, _NR_MEMFD_CREATE_ELSEWHERE)
    return system_call(number, os.fsencode(name), flags)


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
    fd = open_memfd(name, sealing=True)
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
