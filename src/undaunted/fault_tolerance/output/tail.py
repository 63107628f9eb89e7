"""Following one file of a rank and cutting what it says into prefixed lines."""

from __future__ import annotations

import os

CHUNK_BYTES = 64 * 1024  # read at once, and the longest piece of a line that is kept in memory


class LineAssembler:
    """Turns bytes as they arrive into whole lines, each with a prefix.

    A carriage return ends a line as well, so that progress bars show up. A line that is longer than
    ``CHUNK_BYTES`` is shown in several pieces, each a line of its own: memory stays bounded.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._partial = b""
        self._after_return = False

    def feed(self, data: bytes) -> bytes:
        """Return the whole lines that ``data`` completes, with prefixes; may be empty."""
        if not data:
            return b""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]  # second half of a CR LF whose line was given out already
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            lines, self._partial = self._partial + whole, rest
            return self._prefixed(lines)
        self._partial += rest
        return self.finish() if len(self._partial) > CHUNK_BYTES else b""

    def finish(self) -> bytes:
        """Return the line that was begun, ended here; empty if there is none."""
        lines, self._partial = self._partial, b""
        return self._prefixed(lines) if lines else b""

    def _prefixed(self, lines: bytes) -> bytes:
        return self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + b"\n"


class FileTail:
    """Reads what is appended to a file, from its present end on."""

    def __init__(self, path: str, prefix: bytes) -> None:
        """Open the file; it is created (0600) if the rank has not done so yet.

        Raises:
            OSError: not possible.
        """
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._offset = os.fstat(self._fd).st_size
        self._assembler = LineAssembler(prefix)
        self.has_more = False  # whether the last read left something in the file

    def read(self) -> bytes | None:
        """Return the whole lines in the next chunk, or None when there is nothing new."""
        try:
            data = os.pread(self._fd, CHUNK_BYTES, self._offset)
        except OSError:  # a file system that fails: the console goes without
            data = b""
        self.has_more = len(data) == CHUNK_BYTES
        if not data:
            return None
        self._offset += len(data)
        return self._assembler.feed(data)

    def finish(self) -> bytes:
        """Return the last line if it has no end."""
        return self._assembler.finish()

    def unread_bytes(self) -> int:
        """How much of the file was not looked at."""
        return max(0, os.fstat(self._fd).st_size - self._offset)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)
