"""Lines for the user, written by a thread so that a reader who has stalled stops nobody."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output.console import Console
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.fault_tolerance.output.launcher_log import LauncherLog

if TYPE_CHECKING:
    from undaunted.fault_tolerance.output.job_logs import OpenLog

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
        log: path of a file that gets them as well, see `LauncherLog`; "" = none.
        node: name of this node in that file.
        open_log: opens it.
    """

    def __init__(
        self,
        fd: int = 2,
        level: int = INFO,
        log: str = "",
        node: str = "",
        open_log: OpenLog = open_here,
    ) -> None:
        self._level = level
        self._fd = fd
        self._console = Console(fd, _wait_until_writable)
        self._lines: queue.Queue[bytes | None] = queue.Queue(maxsize=_QUEUED_LINES)
        self._thread = threading.Thread(target=self._write, name="undaunted-messages", daemon=True)
        self._thread.start()
        self._log = LauncherLog(log, node, self._say_here, open_log) if log else None

    def say(self, text: str, *, level: int = WARNING, prefix: bool = True) -> None:
        """Write ``text`` (one or more lines) soon; never blocks."""
        if level < self._level:
            return
        lines = (_PREFIX if prefix else "") + text + "\n"
        self._show(lines)
        log = self._log  # read once: another thread may be closing it
        if log is not None:
            log.add(lines)

    def close_log(self, timeout_s: float = 1.0) -> None:
        """Complete the file; lines are still shown."""
        log, self._log = self._log, None
        if log is not None:
            log.close(timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is waiting, for at most ``timeout_s``; not at all if the reader stalls.

        The file has as long again.
        """
        self.close_log(timeout_s)
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        if self._console.stalled_fd is None:
            self._thread.join(timeout_s)

    def _say_here(self, text: str) -> None:
        self._show(f"{_PREFIX}{text}\n")

    def _show(self, lines: str) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(lines.encode(errors="replace"))

    def _write(self) -> None:
        while (lines := self._lines.get()) is not None:
            self._console.write(to_line_begin(self._fd) + lines)


def to_line_begin(fd: int) -> bytes:
    """What brings a terminal to the beginning of a line, "" = ``fd`` is none.

    A rank may have left its line unfinished, as progress bars do. As many spaces as a line has
    columns end in the next line, unless they began at the beginning of one: nobody has to be asked.
    """
    if os.environ.get("TERM", "dumb") == "dumb":
        return b""
    try:
        columns = os.get_terminal_size(fd).columns
    except OSError:
        return b""
    return b" " * columns + b"\r\x1b[K" if columns else b""


def _wait_until_writable(fd: int, seconds: float) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    poller.poll(seconds * 1000)
