"""Lines for the user, written by a thread so that a reader who has stalled stops nobody."""

from __future__ import annotations

import contextlib
import queue
import select
import threading

from undaunted.fault_tolerance.output.console import Console

_PREFIX = "[undaunted] "
_QUEUED_LINES = 1000
# Levels as in `logging`, which the launcher does not import.
INFO = 20
WARNING = 30
ERROR = 40


class Messages:
    """Writes the agent's own lines to ``fd`` (standard error).

    Lines that nobody reads are dropped and counted, see `Console`; the journal has everything.

    Args:
        fd: where they go.
        level: lines below it are left out.
    """

    def __init__(self, fd: int = 2, level: int = INFO) -> None:
        self._level = level
        self._console = Console(fd, _wait_until_writable)
        self._lines: queue.Queue[bytes | None] = queue.Queue(maxsize=_QUEUED_LINES)
        self._thread = threading.Thread(target=self._write, name="undaunted-messages", daemon=True)
        self._thread.start()

    def say(self, text: str, *, level: int = WARNING, prefix: bool = True) -> None:
        """Write ``text`` (one or more lines) soon; never blocks."""
        if level < self._level:
            return
        head = _PREFIX if prefix else ""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait((head + text + "\n").encode(errors="replace"))

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is waiting, for at most ``timeout_s``; not at all if the reader stalls."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        if self._console.stalled_fd is None:
            self._thread.join(timeout_s)

    def _write(self) -> None:
        while (lines := self._lines.get()) is not None:
            self._console.write(lines)


def _wait_until_writable(fd: int, seconds: float) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    poller.poll(seconds * 1000)
