"""System calls and functions of Python that a launcher needs: a trial of each."""

from __future__ import annotations

import errno
import os
import platform
import signal
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.memory import open_memfd

if TYPE_CHECKING:
    from collections.abc import Callable

# Functions that a build of Python may lack, with their modules. We do without them.
_OPTIONAL = (
    (os, "memfd_create"),
    (os, "pidfd_open"),
    (signal, "pidfd_send_signal"),
    (os, "RWF_NOWAIT"),
)

_REFUSALS = (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP)


def lacking_names() -> list[str]:
    """Return the names that this build of Python lacks, and that undaunted has a way around."""
    return [f"{module.__name__}.{name}" for module, name in _OPTIONAL if not hasattr(module, name)]


def refused() -> list[str]:
    """Try the system calls that no job can do without; return those that fail, each with why."""
    tried = [(f"{name} (Linux {since})", _failure(attempt)) for name, since, attempt in _NEEDED]
    return [f"{call}: {why}" for call, why in tried if why]


def _failure(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except AttributeError as error:  # Python has no function for it
        return str(error)
    except OSError as error:
        if error.errno in _REFUSALS:  # others have come to a limit, which passes
            return error.strerror or str(error)
    return ""


def objection() -> str:
    """Return why nothing can be started on this kernel, with the remedy; "" = it can."""
    if not (calls := refused()):
        return ""
    return (
        f"this kernel ({platform.release()}) or its container refuses {', '.join(calls)}\n"
        "  undaunted needs these calls. Use a newer kernel, or a container runtime whose seccomp "
        "profile allows them; undaunted doctor shows more"
    )


def _pidfd() -> None:
    pidfd = process.open_pidfd(os.getpid())
    assert pidfd is not None, "this process exists"
    try:
        process.signal_pidfd(pidfd, 0)
    finally:
        os.close(pidfd)


def _memfd() -> None:
    os.close(open_memfd("undaunted-trial"))


def _eventfd() -> None:
    os.close(os.eventfd(0, os.EFD_CLOEXEC))


def _allocation() -> None:
    fd = open_memfd("undaunted-trial")
    try:
        os.posix_fallocate(fd, 0, 1)
    finally:
        os.close(fd)


_NEEDED: tuple[tuple[str, str, Callable[[], object]], ...] = (
    ("pidfd_open", "5.3", _pidfd),
    ("memfd_create", "3.17", _memfd),
    ("eventfd", "2.6.27", _eventfd),
    ("fallocate", "2.6.38", _allocation),
    ("prctl(PR_SET_CHILD_SUBREAPER)", "3.4", process.is_subreaper),
)
