"""The directory in which torch leaves the errors of ranks.

On a local disk, since the agent reads it: a hung file system must not stop the agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

_PREFIX = "undaunted-errors-"
_MADE_S = 60.0  # after which one that nobody has locked was left by an agent that is gone


class ErrorDirectory(NamedTuple):
    """Its path, "" = there is none; and a descriptor that locks it while its agent lives."""

    path: str = ""
    lock: int = -1


def make() -> ErrorDirectory:
    """Make one for this process, the agent, and remove what killed agents have left."""
    with contextlib.suppress(OSError):
        _remove_left()
    with contextlib.suppress(OSError):
        path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        return ErrorDirectory(path, _locked(path, fcntl.LOCK_SH))
    return ErrorDirectory()


def remove(directory: ErrorDirectory) -> None:
    """Remove what `make` has made."""
    if directory.path:
        shutil.rmtree(directory.path, ignore_errors=True)
    if directory.lock >= 0:
        os.close(directory.lock)


def _remove_left() -> None:
    """A process holds a lock whatever its pid is, and whichever process has that pid afterwards."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
            about = path.lstat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > _MADE_S:
                lock = _locked(str(path), fcntl.LOCK_EX)
                if lock >= 0:
                    remove(ErrorDirectory(str(path), lock))


def _locked(path: str, how: int) -> int:
    """Return a descriptor that locks a directory, -1 if others have it locked."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def remove_of(agent: int) -> None:
    """Remove what an agent that was killed has left."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{agent}-*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                remove(ErrorDirectory(str(path)))
