"""Lines for the user, written by a thread so that a reader who has stalled stops nobody."""

from __future__ import annotations

import os
import queue
import select
import threading
import time

_PREFIX = "[undaunted] "
_QUEUED_LINES = 1000
_STALL_S = 5.0


class Console:
    """Writes the agent's lines to ``fd`` (standard error).

    A line that cannot be written within 5 s is dropped, as are those beyond 1000 waiting ones; the
    journal has everything.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lines: queue.Queue[bytes | None] = queue.Queue(maxsize=_QUEUED_LINES)
        self._stalled = threading.Event()
        self._thread = threading.Thread(target=self._write_lines, name="console", daemon=True)
        self._thread.start()

    def say(self, text: str, *, prefix: bool = True) -> None:
        """Write ``text`` (one or more lines) soon; never blocks."""
        head = _PREFIX if prefix else ""
        try:
            self._lines.put_nowait((head + text + "\n").encode(errors="replace"))
        except queue.Full:
            pass

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is waiting, for at most ``timeout_s``."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(0.05 if self._stalled.is_set() else timeout_s)

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)

    def _write(self, line: bytes) -> None:
        deadline = time.monotonic() + _STALL_S
        poller = select.poll()
        try:
            poller.register(self._fd, select.POLLOUT)
            while line:
                # A writable pipe takes at least PIPE_BUF bytes at once without blocking.
                left = deadline - time.monotonic()
                if left <= 0 or not poller.poll(left * 1000):
                    self._stalled.set()
                    return
                line = line[os.write(self._fd, line[: select.PIPE_BUF]) :]
            self._stalled.clear()
        except OSError:
            return  # nobody reads any more


