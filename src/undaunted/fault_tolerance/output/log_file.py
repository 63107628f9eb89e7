"""Appending to a log file that may be on a disk that is full."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.directories import make_private
from undaunted.fault_tolerance.output.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW


class LogFile(Sink):
    """One file, appended to by one thread.

    What could not be written is kept, so that nothing is lost and nothing comes twice: while
    `blocked`, call `flush` now and then and do not `write`.
    """

    def __init__(self, path: str) -> None:
        """Open the file, which is created (0600) with its directories (0700) if it is missing.

        Raises:
            OSError: not possible; a symbolic link is not followed.
        """
        make_private(Path(path).parent)
        self.path = path
        self.error = ""  # why the last attempt failed, "" = it did not
        self._fd = os.open(path, _FLAGS, 0o600)
        self._waiting: list[memoryview] = []

    @property
    def blocked(self) -> bool:
        """Return whether something is waiting to be written."""
        return bool(self._waiting)

    @property
    def missing_lines(self) -> int:
        """Lines that are waiting."""
        return sum(bytes(piece).count(b"\n") for piece in self._waiting)

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Append the pieces, or keep them for `flush`. Never raises."""
        self._waiting += [memoryview(piece) for piece in pieces if len(piece)]
        self.flush()

    def flush(self) -> None:
        """Try again to write what is waiting. Never raises."""
        while self._waiting:
            try:
                written = os.writev(self._fd, self._waiting)
            except OSError as error:
                self.error = error.strerror or str(error)
                return
            self._drop(written)
        self.error = ""

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def _drop(self, written: int) -> None:
        while self._waiting and written >= len(self._waiting[0]):
            written -= len(self._waiting.pop(0))
        if written:
            self._waiting[0] = self._waiting[0][written:]
