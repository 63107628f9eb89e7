"""Lines for people: shown on the launcher's console, and appended to its log if there is one.

Each of the two has its queue and its thread, since each may hang by itself: a console that
nobody reads must not keep lines from the log, nor a disk that does not answer from the console.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.fault_tolerance.output.console import Console
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.fault_tolerance.output.lines import INFO, PROGRESS, TEXT, WARNING, LineFormat
from undaunted.fault_tolerance.output.log_file import LogFile
from undaunted.fault_tolerance.output.stamps import stamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.output.job_logs import OpenLog

_QUEUED_LINES = 1000
_QUEUED_TEXTS = 1000
_RETRY_S = 1.0  # after the file could not be written to


class Messages:
    """Shows lines on standard error.

    Lines that nobody reads are dropped and counted, see `Console`; the journal has everything.

    Args:
        level: lines below it are left out.
        fd: where they go.
        form: how they look there, unless it is a terminal; the file has text.
    """

    def __init__(self, level: int = INFO, fd: int = 2, form: LineFormat = TEXT) -> None:
        self._level = level
        self._fd = fd
        self._form = form
        self._console = Console(fd, _wait_until_writable, form.line)
        self._lines: queue.Queue[bytes | None] = queue.Queue(maxsize=_QUEUED_LINES)
        self._thread = threading.Thread(target=self._write, name="undaunted-messages", daemon=True)
        self._thread.start()
        self._log: LauncherLog | None = None
        self._shared = False
        self._touched = False  # others may have written since the last line

    def write_to(self, path: str, node: str, open_log: OpenLog = open_here) -> None:
        """Append lines to a file as well from now on, see `LauncherLog`; its problems are shown."""
        self._log = LauncherLog(path, node, self._show_problem, open_log)

    def say(
        self, text: str, *, level: int = WARNING, rank: int | None = None, prefix: bool = True
    ) -> None:
        """Write ``text`` soon, see `LineFormat.line`; never blocks."""
        form = self._form.on(self._fd)  # a window changes its size
        if level < self._level or (level == PROGRESS and not form.columns):
            return
        self._show(form.line(text, level=level, rank=rank, prefix=prefix))
        log = self._log  # read once: another thread may be closing it
        if log is not None and level != PROGRESS:
            log.add(TEXT.line(text, prefix=prefix))

    def share(self, others: bool) -> None:
        """Tell whether ranks write to the same stream, and may leave a line unfinished."""
        self._shared = others
        self._touched |= others

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
        if not self._console.awaited:
            self._thread.join(timeout_s)

    def _show_problem(self, text: str) -> None:
        self._show(self._form.line(text))

    def _show(self, lines: str) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(lines.encode(errors="replace"))

    def _write(self) -> None:
        while (lines := self._lines.get()) is not None:
            self._console.write([self._line_begin(), lines])

    def _line_begin(self) -> bytes:
        begin = to_line_begin(self._fd) if self._form.name == "text" else b""
        touched, self._touched = self._touched, self._shared
        return b"\n" if touched and not begin and _may_be_unfinished(self._fd) else begin


def to_line_begin(fd: int) -> bytes:
    """Characters that bring a terminal to the beginning of a line, "" = ``fd`` is none.

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


def _may_be_unfinished(fd: int) -> bool:
    """Whether a line of somebody else may lack its end; nobody can look into a pipe."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)
        with open(f"/proc/self/fd/{fd}", "rb") as file:  # noqa: PTH123 - it is no path
            return status.st_size > 0 and os.pread(file.fileno(), 1, status.st_size - 1) != b"\n"
    except OSError:
        return False


def _wait_until_writable(fd: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    poller.poll(seconds * 1000)
    return True


class LauncherLog:
    """Appends texts to a file in a separate thread, which alone waits for the disk.

    A full disk is tried again every second. What does not fit into the queue meanwhile is counted,
    and the count is written when the disk takes something again.
    """

    def __init__(
        self,
        path: str,
        node: str,
        say: Callable[[str], None],
        open_log: OpenLog = open_here,
    ) -> None:
        """Begin; the file is opened by the thread.

        Args:
            path: absolute path of the file, which is appended to; several launchers may share it.
            node: name of this node, put before each text.
            say: called once, by the thread, with a line that says what is wrong.
            open_log: opens the file.
        """
        self._path = path
        self._node = node
        self._say = say
        self._open_log = open_log
        self._texts: queue.Queue[bytes | None] = queue.Queue(maxsize=_QUEUED_TEXTS)
        self._closing = threading.Event()
        self._dropped = 0  # in all
        self._reported = 0  # of these; the thread's own
        self._said = False
        self._thread = threading.Thread(
            target=self._run, name="undaunted-launcher-log", daemon=True
        )
        self._thread.start()

    def add(self, text: str) -> None:
        """Append ``text`` (one or more lines with their ends), with time and node. Never blocks."""
        try:
            self._texts.put_nowait(_stamped(self._node, text))
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_s: float) -> None:
        """Write what is waiting, for at most ``timeout_s``."""
        self._closing.set()
        with contextlib.suppress(queue.Full):  # it sees `_closing` when it has emptied the queue
            self._texts.put_nowait(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            log = self._open_log(self._path, lambda: 0)
        except OSError as error:
            self._say_once(error.strerror or str(error))
            return
        try:
            while (text := self._texts.get()) is not None:
                self._write(log, text)
                if self._texts.empty():
                    self._report_missing(log)
                    if self._closing.is_set():
                        break
            self._report_missing(log)
        finally:
            log.close()

    def _write(self, log: LogFile, text: bytes) -> None:
        if log.blocked:  # closing, and there was no room: nothing more can be written
            return
        log.write([text])
        while log.blocked:
            self._say_once(log.error)
            last_try = self._closing.wait(_RETRY_S)
            log.flush()
            if last_try:
                return

    def _report_missing(self, log: LogFile) -> None:
        missing = self._dropped - self._reported
        if missing and not log.blocked:
            self._reported += missing
            log.write([_stamped(self._node, f"[undaunted] {missing} lines are missing here\n")])

    def _say_once(self, why: str) -> None:
        if not self._said:
            self._said = True
            self._say(
                f"the launcher's log {self._path} cannot be written: {why}; its lines are here, "
                "and in the journal"
            )


def append_last_words(path: str, node: str, text: str, timeout_s: float = 1.0) -> None:
    """Append ``text`` when no `LauncherLog` is there any more. Never raises.

    Args:
        path: the file, "" = nothing is done.
        node: name of this node.
        text: one or more lines with their ends.
        timeout_s: longest wait for the disk.
    """

    def append() -> None:
        log = LogFile(path)
        try:
            log.write([_stamped(node, text)])
        finally:
            log.close()

    if path:
        within(timeout_s, append, None)


def append_to(path: str, node: str, text: str) -> None:
    """Append ``text`` to a file that others made, if it is there: as `append_last_words` does."""
    if path and within(1.0, lambda: Path(path).is_file(), False):
        append_last_words(path, node, text)


def _stamped(node: str, text: str) -> bytes:
    return f"{stamp(time.time())} {node} {text}".encode(errors="replace")
