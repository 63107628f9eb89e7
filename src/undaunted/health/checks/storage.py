"""Storage paths: what the job reads and writes must be there and answer.

Nothing is written: the path may be somebody's data set. A file system that has become read-only
since the first check, as the kernel makes it after errors, is found all the same.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from undaunted.health.check import Check, Finding, Settings, close_quietly, reason

_READ_BYTES = 4096
_WRITABLE = "writable"


class Storage(Check):
    """One path."""

    name = "storage"

    def __init__(self, path: str) -> None:
        """Check ``path``, a file or a directory."""
        self.subject = path

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps whether the file system could be written."""
        try:
            _read(self.subject)
            read_only = bool(os.statvfs(self.subject).f_flag & os.ST_RDONLY)
        except OSError as error:
            return Finding(reason(error))
        if read_only and seen.get(_WRITABLE):
            return Finding("its file system was writable and has become read-only")
        seen[_WRITABLE] = not read_only
        return None


def _read(path: str) -> None:
    """Read a little of a file, or an entry of a directory."""
    # Not blocking, should it be a pipe.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            with os.scandir(fd) as entries:
                next(entries, None)
        elif stat.S_ISREG(mode):
            os.read(fd, _READ_BYTES)
    finally:
        close_quietly(fd)


def checks(settings: Settings) -> list[Check]:
    """Return a check per path."""
    return [Storage(path) for path in dict.fromkeys(settings.storage_paths)]
