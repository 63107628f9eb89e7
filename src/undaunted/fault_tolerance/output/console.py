"""Writing to the launcher's own output without ever hanging on its reader."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output.lines import TEXT
from undaunted.fault_tolerance.output.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STALL_S = 2.0  # how long the reader may take nothing before lines are dropped
_PIECE_BYTES = select.PIPE_BUF  # what a pipe that polls as writable takes without blocking


class Console(Sink):
    """One stream of the launcher. Used by one thread.

    Writes go out in pieces that a pipe takes as a whole, cut between lines where possible. When the
    reader has taken nothing for ``STALL_S``, whole lines are dropped and counted until it reads
    again; then a line says how many.
    """

    chunk_bytes = 64 * 1024
    live = True

    def __init__(
        self,
        fd: int,
        wait: Callable[[int, float], bool],
        notice: Callable[[str], str] = TEXT.line,
        *,
        kept: str = "the journal has them",
    ) -> None:
        """Write to ``fd``, which stays the caller's.

        Args:
            fd: descriptor to write to.
            wait: called with the descriptor and seconds; returns when the descriptor may be
                writable, or the seconds are over. False = do not wait any more.
            notice: makes a line of a text about what was not shown.
            kept: where a reader finds the lines that were not shown.
        """
        self._fd = fd
        self._wait = wait
        self._notice = notice
        self._kept = kept
        self._stalled = False
        self._gone = False  # nobody can ever read it again
        self._in_line = False
        self._dropped = self._untold = 0

    @property
    def missing_lines(self) -> int:
        """Lines that were dropped."""
        return self._dropped

    @property
    def awaited(self) -> Sequence[int]:
        """The descriptor, while lines are being dropped."""
        return [self._fd] if self._stalled and not self._gone else []

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write whole lines, or drop them. Never raises; waits ``STALL_S`` at most."""
        lines = b"".join(pieces)
        self.flush()
        start = 0
        while start < len(lines):
            if self._gone or self._stalled:
                self._drop(lines, start)
                return
            end = _piece_end(lines, start)
            start += self._write_piece(lines[start:end])

    def flush(self) -> None:
        """Tell the reader what it missed, if it reads again."""
        if not self._stalled or not self._writable():
            return
        self._stalled = False
        notice = self._notice(
            f"the reader of this output stalled: {self._untold} lines were not shown; {self._kept}"
        )
        if self._write_piece((b"\n" if self._in_line else b"") + notice.encode()):
            self._untold = 0

    def _drop(self, lines: bytes, start: int) -> None:
        self._stalled = True
        count = lines.count(b"\n", start)
        self._dropped += count
        self._untold += count

    def _write_piece(self, piece: bytes) -> int:
        """Write a piece or its beginning; 0 when the stream is stalled or gone."""
        limit = time.monotonic() + STALL_S
        while not self._gone:
            if self._writable():
                try:
                    written = os.write(self._fd, piece)
                except BlockingIOError:  # non-blocking, and another writer was faster
                    pass
                except OSError:
                    self._gone = True
                    break
                else:
                    self._in_line = not piece.endswith(b"\n", 0, written)
                    return written
            remaining = limit - time.monotonic()
            if remaining <= 0 or not self._wait(self._fd, remaining):
                self._stalled = True
                break
        return 0

    def _writable(self) -> bool:
        if self._gone:
            return False
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        events = poller.poll(0)
        if events and events[0][1] & (select.POLLERR | select.POLLNVAL):
            self._gone = True
            return False
        return bool(events)


def _piece_end(lines: bytes, start: int) -> int:
    """End of the next piece: after the last whole line that fits, else as much as fits."""
    limit = start + _PIECE_BYTES
    if limit >= len(lines):
        return len(lines)
    return lines.rfind(b"\n", start, limit) + 1 or limit
