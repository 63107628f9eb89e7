"""Writes a rank's records, one `write` each: what was written outlives the process."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

from undaunted.digests import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Recorder:
    """Appends to the file of one rank. Holds nothing open."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Say whose records these are.

        Args:
            directory: exists.
            rank: the global one.
        """
        self._path = record.file_of(directory, rank)
        self._in_line = False

    def write(self, one: record.Record) -> None:
        """Append a record.

        Raises:
            OSError: it was not written, or in part.
        """
        line = record.encode(one)
        if self._in_line:  # a full disk has left half a line
            line = b"\n" + line
        fd = os.open(self._path, _FLAGS, 0o600)
        try:
            with _without_size_limit():
                written = os.write(fd, line)
        finally:
            os.close(fd)
        if written < len(line):
            self._in_line = True
            raise OSError(f"only {written} of {len(line)} bytes were written to {self._path}")
        self._in_line = False


@contextlib.contextmanager
def _without_size_limit() -> Iterator[None]:
    """Lift the process's own limit of file size: it is there for what the script writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == hard:
        yield
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
