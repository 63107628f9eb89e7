"""Writing to the launcher's own output without ever hanging on its reader."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output.lines import TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

STALL_S = 2.0  # how long the reader may take nothing before lines are dropped
_PIECE_BYTES = select.PIPE_BUF  # what a pipe that polls as writable takes without blocking


class Console:
    """One stream of the launcher. Used by one thread; only ``deadline`` is set by others.

    Writes go out in pieces that a pipe takes as a whole, cut between lines where possible. When the
    reader has taken nothing for ``STALL_S``, whole lines are dropped and counted until it reads
    again; then a line says how many.
    """

    def __init__(
        self,
        fd: int,
        wait: Callable[[int, float], None],
        notice: Callable[[str], str] = TEXT.line,
    ) -> None:
        """Write to ``fd``, which stays the caller's.

        Args:
            fd: descriptor to write to.
            wait: called with the descriptor and seconds; returns when the descriptor may be
                writable, the seconds are over, or the deadline may have changed.
            notice: makes a line of a text about what was not shown.
        """
        self.dropped_lines = 0
        self.deadline: float | None = None  # time.monotonic() after which lines are dropped
        self._fd = fd
        self._wait = wait
        self._notice = notice
        self._stalled = False
        self._gone = False  # nobody can ever read it again
        self._in_line = False
        self._untold = 0

    @property
    def expired(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def stalled_fd(self) -> int | None:
        """Descriptor to watch for the reader's return, while lines are being dropped."""
        return self._fd if self._stalled and not self._gone else None

    def write(self, lines: bytes) -> None:
        """Write whole lines, or drop them. Never raises; waits ``STALL_S`` at most."""
        self.resume()
        start = 0
        while start < len(lines):
            if self._gone or self._stalled or self.expired:
                self._drop(lines, start)
                return
            end = _piece_end(lines, start)
            start += self._write_piece(lines[start:end])

    def resume(self) -> None:
        """Tell the reader what it missed, if it reads again."""
        if not self._stalled or not self._writable():
            return
        self._stalled = False
        notice = self._notice(
            f"the reader of this output stalled: {self._untold} lines were not shown; "
            "see the log files"
        )
        if self._write_piece((b"\n" if self._in_line else b"") + notice.encode()):
            self._untold = 0

    def _drop(self, lines: bytes, start: int) -> None:
        self._stalled = True
        count = lines.count(b"\n", start)
        self.dropped_lines += count
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
            if remaining <= 0 or self.expired:
                self._stalled = True
                break
            self._wait(self._fd, remaining)
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
