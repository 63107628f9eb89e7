"""Copying the lines of one rank's file, each with a prefix, to a log file.

Nothing but positions is remembered between two calls: a line that was begun stays in the file until
its end is there, however long it gets.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.fault_tolerance.output.filters import LineFilter
    from undaunted.logs.log_file import LogFile

CHUNK_BYTES = 256 * 1024  # read at once
# A private file gives its disk space back in pieces of this size, and keeps this much of its end.
RECLAIM_BYTES = 16 * 1024 * 1024
KEEP_BYTES = 1024 * 1024
_KEEP_SIZE_PUNCH_HOLE = 0x1 | 0x2  # flags of fallocate(2)


class LineCopy:
    """One file of a rank. Used by one thread."""

    def __init__(
        self, path: str, prefix: bytes, keeps: LineFilter, *, reclaim: bool = False
    ) -> None:
        """Open the file; it is created (0600) if the rank has not done so yet.

        What is in it already is not copied.

        Args:
            path: the rank's file; others only append to it.
            prefix: put before each line.
            keeps: filter of lines; one longer than a chunk is judged by its beginning.
            reclaim: nobody else reads the file: free the disk space of what was copied.

        Raises:
            OSError: not possible.
        """
        flags = os.O_RDWR if reclaim else os.O_RDONLY
        self.path = path
        self._fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._done = os.fstat(self._fd).st_size
        self._scanned = self._done  # no line ends between the two
        self._long_end = 0  # end of a long line whose beginning was copied
        self._lacks_end = False
        self._prefix = prefix
        self._keeps = keeps
        self._freed = self._done if reclaim else None

    @property
    def done(self) -> int:
        """Position up to which the file was copied."""
        return self._done

    @property
    def in_line(self) -> bool:
        """Whether part of a line was copied: go on with this file before any other."""
        return self._long_end > self._done

    def step(self, log: LogFile) -> int:
        """Copy the whole lines in the next chunk, or a piece of a long line.

        When ``log`` is blocked afterwards, it must be flushed before the next call.

        Returns:
            How many bytes were looked at; 0 = nothing new in the file, or it cannot be read.
        """
        if self.in_line:
            return self._copy_piece(log)
        data = self._read(self._scanned, CHUNK_BYTES)
        end = data.rfind(b"\n") + 1
        if not end:
            self._scanned += len(data)
            return len(data)
        if self._scanned > self._done:  # the end of a line that was begun earlier
            end = data.find(b"\n") + 1
            self._copy_line(self._scanned + end, log)
        else:
            self._done += end
            self._write_lines(data if end == len(data) else data[:end], log)
        self._scanned = max(self._done, self._long_end)
        self._reclaim()
        return end

    def finish(self, log: LogFile) -> bool:
        """Copy a last line that has no end, which it gets; True if there was one.

        Only after `step` has returned 0. Unless the line is short, `step` copies it.
        """
        if self._scanned == self._done or self.in_line:
            return False
        self._lacks_end = True
        self._copy_line(self._scanned, log)
        return True

    def unread_bytes(self) -> int:
        """How much of the file was not copied."""
        return max(0, os.fstat(self._fd).st_size - self._done)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def _copy_line(self, end: int, log: LogFile) -> None:
        """Copy one line that ends at ``end``; if it is long, begin to."""
        if end - self._done <= CHUNK_BYTES:
            line = self._read(self._done, end - self._done)
            self._done = end
            self._write_lines(line if line.endswith(b"\n") else line + b"\n", log)
        elif self._keeps(self._read(self._done, CHUNK_BYTES) + b"\n"):
            log.write([self._prefix])
            self._long_end = end
        else:
            self._done = end

    def _copy_piece(self, log: LogFile) -> int:
        piece = self._read(self._done, min(CHUNK_BYTES, self._long_end - self._done))
        self._done += len(piece)
        log.write([piece] if self.in_line or not self._lacks_end else [piece, b"\n"])
        self._reclaim()
        return len(piece)

    def _write_lines(self, lines: bytes, log: LogFile) -> None:
        if kept := self._keeps(lines):
            # One copy of the data, not three: the prefix after the last end of line is cut off.
            prefixed = kept.replace(b"\n", b"\n" + self._prefix)
            log.write([self._prefix, memoryview(prefixed)[: len(prefixed) - len(self._prefix)]])

    def _read(self, position: int, count: int) -> bytes:
        try:
            return os.pread(self._fd, count, position)
        except OSError:
            return b""

    def _reclaim(self) -> None:
        if self._freed is None or self._done - KEEP_BYTES - self._freed < RECLAIM_BYTES:
            return
        end = self._done - KEEP_BYTES
        # Where the file system cannot do that, the file is as long as the output until its end.
        _libc().fallocate(
            self._fd,
            _KEEP_SIZE_PUNCH_HOLE,
            ctypes.c_int64(self._freed),
            ctypes.c_int64(end - self._freed),
        )
        self._freed = end


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
