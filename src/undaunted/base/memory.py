"""Files in memory, without a name; shared memory is allocated before anybody stores into it."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from pathlib import Path

from undaunted.base import cgroups
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
# Allocated at once. A size below the second needs no look at the limits.
_AT_ONCE = 256 << 20
_LOOKED_AT = 8 << 20
# Left to the program, which would be killed at its next allocation.
_SPARE = 16 << 20


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
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and size > limit:
        raise OSError(
            errno.EFBIG,
            f"cannot allocate {size} bytes of shared memory ({name}): the limit of file sizes, "
            f"which counts for it, is {limit} bytes; raise it (ulimit -f)",
        )
    check_room(name, size)
    fd = open_memfd(name, sealing=True)
    try:
        # Piece by piece: other ranks may allocate at the same moment.
        for start in range(0, size, _AT_ONCE):
            if start:
                check_room(name, size - start)
            _allocate(fd, name, start, min(_AT_ONCE, size - start))
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _allocate(fd: int, name: str, start: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, start, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise _no_memory(error.errno, name, size, str(error.strerror)) from error


def check_room(name: str, size: int) -> None:
    """See that memory can be allocated without somebody being killed for it.

    Args:
        name: of the memory, for people.
        size: bytes.

    Raises:
        OSError: the node, or the limit of the job's cgroup, does not leave as much.
    """
    if size < _LOOKED_AT:
        return
    needed = size + _SPARE
    left = cgroups.memory_left()
    if left is not None and left < needed:
        raise _no_memory(
            errno.ENOMEM, name, size, f"the memory limit of the job's cgroup leaves {left}"
        )
    info = Path("/proc/meminfo")
    there = cgroups.keyed(info, "MemAvailable:", 1024)
    if there and there + (cgroups.keyed(info, "SwapFree:", 1024) or 0) < needed:
        raise _no_memory(errno.ENOMEM, name, size, f"this node has {there} left")


def _no_memory(number: int, name: str, size: int, why: str) -> OSError:
    return OSError(
        number,
        f"cannot allocate {size} bytes of memory ({name}): {why}; free "
        "memory on this node or raise the memory limit of the job's cgroup",
    )
