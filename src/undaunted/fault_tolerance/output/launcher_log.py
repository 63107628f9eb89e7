"""The file for the launcher's own lines (``--ft-nvrx-logfile``)."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.logs.log_file import LogFile
from undaunted.logs.stamps import stamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.output.job_logs import OpenLog

_QUEUED_TEXTS = 1000
_RETRY_S = 1.0  # after the file could not be written to


class LauncherLog:
    """Appends texts to a file in a thread of its own, which alone waits for the disk.

    A full disk is tried again every second. What does not fit into the queue meanwhile is counted,
    and the count is written when the disk takes something again.
    """

    def __init__(
        self,
        path: str,
        node: str,
        on_problem: Callable[[str], None],
        open_log: OpenLog = open_here,
    ) -> None:
        """Begin; the file is opened by the thread.

        Args:
            path: absolute path of the file, which is appended to; several launchers may share it.
            node: name of this node, put before each text.
            on_problem: called once, by the thread, with a line that says what is wrong.
            open_log: opens the file.
        """
        self._path = path
        self._node = node
        self._on_problem = on_problem
        self._open_log = open_log
        self._texts: queue.Queue[bytes | None] = queue.Queue(maxsize=_QUEUED_TEXTS)
        self._closing = threading.Event()
        self._dropped = 0  # in all
        self._reported = 0  # of these; the thread's own
        self._told = False
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
            self._tell(error.strerror or str(error))
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
            self._tell(log.error)
            last_try = self._closing.wait(_RETRY_S)
            log.flush()
            if last_try:
                return

    def _report_missing(self, log: LogFile) -> None:
        missing = self._dropped - self._reported
        if missing and not log.blocked:
            self._reported += missing
            log.write([_stamped(self._node, f"[undaunted] {missing} lines are missing here\n")])

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._on_problem(
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


def _stamped(node: str, text: str) -> bytes:
    return f"{stamp(time.time())} {node} {text}".encode(errors="replace")
