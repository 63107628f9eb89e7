"""Appends whole lines to one journal file and accounts for every line it could not write.

No threads and no queue here: each call does its file operations and returns. What must hold after
any failure: a reader loses at most the one line that was cut, the newest events are kept until
writing works again, and every lost event is in the count of an ``EventsLost`` line.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from typing import TYPE_CHECKING

from undaunted.base.process import refusal
from undaunted.journal.files import FileSystem, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Appender:
    """One journal file, opened when needed and again after each failure.

    Attributes:
        lost: events missing since the last line that was written.
        lost_total: events that were lost at any time.
    """

    def __init__(
        self,
        path: str,
        *,
        header: Callable[[], bytes],
        lost_line: Callable[[int, str], bytes],
        keep_bytes: int = 0,
        fs: FileSystem = os,
    ) -> None:
        """Prepare; the file is opened by the first ``append``.

        Args:
            path: the file. Created with mode 0600; not followed if it is a symbolic link.
            header: makes the first line of this writer, also of a file that had to be re-created.
            lost_line: makes the line that tells how many events are missing, and why.
            keep_bytes: how much of what could not be written is kept for the next time.
            fs: the file system.
        """
        self._path = path
        self._header = header
        self._lost_line = lost_line
        self._fs = fs
        self._fd = -1
        self._torn = False  # the file ends in the middle of a line
        self._headed = False  # our header is in the file
        self._in_file = 0  # events of ours in the file
        self._reason = ""
        self._keep_bytes = keep_bytes
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self.lost = 0
        self.lost_total = 0

    @property
    def behind(self) -> bool:
        """Return whether something waits for `append` to work again."""
        return bool(self._kept) or self.lost > 0

    def append(self, lines: Sequence[bytes]) -> str:
        """Append lines, after the header, lines kept, or a note about lost events if those are due.

        Returns:
            Why not all could be written, or "".
        """
        lines = [*self._kept, *lines]
        self._kept.clear()
        self._kept_bytes = 0
        try:
            self._open()
            pieces = self._pieces(lines)
        except (OSError, ValueError) as error:
            self.close()
            return self._fail(lines, error)
        done, failure = write_all(self._fs, self._fd, b"".join(piece for piece, _ in pieces))
        unwritten = self._account(pieces, done)
        if failure is None:
            self._torn = False
            return ""
        self.close()  # opening again finds out where the file ends, and gets over ESTALE
        return self._fail(unwritten, failure)

    def keep(self, lines: Sequence[bytes]) -> None:
        """Take lines for the next `append` that works; the oldest ones kept are lost if need be."""
        self._kept.extend(lines)
        self._kept_bytes += sum(map(len, lines))
        before = len(self._kept)
        while self._kept_bytes > self._keep_bytes:
            self._kept_bytes -= len(self._kept.popleft())
        self.note_lost(before - len(self._kept), self._reason)

    def give_up(self) -> None:
        """Count the lines that are kept as lost."""
        self.note_lost(len(self._kept), self._reason)
        self._kept.clear()
        self._kept_bytes = 0

    def note_lost(self, count: int, reason: str) -> None:
        """Add events that were lost before they came here."""
        self.lost += count
        self.lost_total += count
        self._reason = reason

    def sync(self) -> str:
        """Wait until what was written is on the disk. Returns what went wrong, or ""."""
        if self._fd < 0:
            return ""
        try:
            self._fs.fdatasync(self._fd)
        except OSError as error:
            # A pipe or device cannot be synchronised, and need not be.
            return "" if error.errno == errno.EINVAL else _describe(error)
        return ""

    def close(self) -> None:
        """Close the file; a later ``append`` opens it again."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._fs.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd >= 0:
            if self._fs.fstat(self._fd).st_nlink > 0:
                return
            self.close()
            self.note_lost(self._in_file, "the journal file was deleted")
            self._in_file = 0
        self._fd = self._fs.open(self._path, _FLAGS, 0o600)
        size = self._fs.fstat(self._fd).st_size
        self._torn = size > 0 and self._fs.pread(self._fd, 1, size - 1) != b"\n"
        if size == 0:
            self._headed = False

    def _pieces(self, lines: Sequence[bytes]) -> list[tuple[bytes, str]]:
        pieces = [(b"\n", "end of a torn line")] if self._torn else []
        if not self._headed:
            pieces.append((self._header(), "header"))
        if self.lost:
            pieces.append((self._lost_line(self.lost, self._reason), "lost"))
        pieces.extend((line, "event") for line in lines)
        return pieces

    def _account(self, pieces: Sequence[tuple[bytes, str]], done: int) -> list[bytes]:
        """Note what ``done`` bytes brought into the file; return the events that are not."""
        unwritten: list[bytes] = []
        for piece, kind in pieces:
            # A line that lacks nothing but its line feed counts: the feed comes with the next one.
            written = done >= len(piece) - 1
            done -= len(piece)
            if kind == "event":
                self._in_file += written
                if not written:
                    unwritten.append(piece)
            elif kind == "header" and written:
                self._headed = True
            elif kind == "lost" and written:
                self.lost = 0
        return unwritten

    def _fail(self, unwritten: Sequence[bytes], error: Exception) -> str:
        self._reason = _describe(error)
        self.keep(unwritten)
        return self._reason


def _describe(error: Exception) -> str:
    return refusal(error) if isinstance(error, OSError) else str(error)
