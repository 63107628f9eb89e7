"""Putting the message files of a node together in one log, in the order of time.

A thread does it. It is woken by inotify, reads bounded pieces, and alone waits for the log's disk.
How far each file is in a log is kept beside the files: an aggregator that is killed has a successor
that goes on there. At worst the last messages come twice; none is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from itertools import islice
from typing import Any

from nvidia_resiliency_ext.shared_utils._messages.files import check_directory
from nvidia_resiliency_ext.shared_utils._messages.merge import Merger
from nvidia_resiliency_ext.shared_utils._messages.sources import Sources
from undaunted.fault_tolerance.output.growth import Growth
from undaunted.fault_tolerance.output.log_file import LogFile

HOLD_S = 1.0
_BATCH_S = 0.05  # processes that log all the time wake us at most this often
_RETRY_S = 1.0  # after the log could not be written to
_CHUNKS_AT_ONCE = 16  # of one file, before the next one is read
_POSITIONS = ".aggregated.json"
_LOCK = ".aggregator.lock"


class InUseError(OSError):
    """Another aggregator is at work on the directory."""


class Aggregator:
    """Follows a directory until closed. ``problems`` says what is missing in the log, and why."""

    def __init__(self, directory: str, log_path: str, hold_s: float = HOLD_S) -> None:
        """Prepare.

        Args:
            directory: of the message files; made if it is missing.
            log_path: the log, which is appended to.
            hold_s: how long a message waits for older ones of other files.
        """
        self.problems: list[str] = []
        self._directory = directory
        self._log_path = os.path.abspath(log_path)  # noqa: PTH100
        self._merger = Merger(hold_s)
        self._closing = False
        self._lock = -1
        self._written: dict[str, int] = {}  # file: position up to which it is in the log
        self._growth: Growth | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin.

        Raises:
            InUseError: another aggregator has the directory.
            OSError: directory or log cannot be used.
        """
        check_directory(self._directory)
        self._lock = self._take_lock()
        try:
            log = LogFile(self._log_path)
        except OSError:
            os.close(self._lock)
            raise
        _end_torn_line(self._log_path, log)
        self._written = self._read_positions()
        self._growth = Growth()
        self._growth.watch(self._directory)
        self._thread = threading.Thread(
            target=self._run, args=(log, self._growth), name="undaunted-aggregator", daemon=True
        )
        self._thread.start()

    def request_close(self) -> None:
        """Have what is in the files now written, and the thread end. Does not wait."""
        self._closing = True
        if self._growth is not None:
            self._growth.wake()

    def close(self, timeout_s: float) -> bool:
        """Write what is there, for at most ``timeout_s``.

        Returns:
            False if the disk hangs; the thread then ends with the process.
        """
        self.request_close()
        if self._thread is None or self._growth is None:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.problems.append(f"{self._log_path} is incomplete: not written in time")
            return False
        self._growth.close()
        self._thread = self._growth = None
        os.close(self._lock)
        return True

    def _run(self, log: LogFile, growth: Growth) -> None:
        sources = Sources(self._directory, self._written)
        try:
            while True:
                closing = self._closing  # read before the files: what came before it is written
                looked_at = time.monotonic()
                more = self._read(sources, log, growth)
                self._write(log, growth, everything=closing and not more)
                if more:
                    continue
                if closing:
                    return
                for name in sources.drop_removed():
                    self._written.pop(name, None)
                    self._merger.forget(name)
                growth.wait(looked_at + _BATCH_S, self._merger.next_turn())
        finally:
            sources.close()
            growth.stop_watching()
            log.close()

    def _read(self, sources: Sources, log: LogFile, growth: Growth) -> bool:
        """Read some chunks of every file; True if there is more."""
        more = False
        for name in sources.look():
            chunks = 0
            for position, lines in islice(sources.read(name), _CHUNKS_AT_ONCE):
                chunks += 1
                self._merger.add(name, position, lines, time.monotonic())
                if self._merger.full:
                    self._write(log, growth)
            more = more or chunks == _CHUNKS_AT_ONCE
        return more

    def _write(self, log: LogFile, growth: Growth, *, everything: bool = False) -> None:
        messages = self._merger.take(time.monotonic(), everything=everything)
        if not messages:
            return
        log.write([b"".join(message.lines for message in messages)])
        while log.blocked:
            if self._closing:
                log.flush()
                if log.blocked:
                    self.problems.append(f"{self._log_path} is incomplete: {log.error}")
                return
            now = time.monotonic()
            growth.wait(now + _RETRY_S, now + _RETRY_S)
            log.flush()
        for message in messages:
            self._written[message.file] = message.end
        self._keep_positions()

    def _take_lock(self) -> int:
        path = f"{self._directory}/{_LOCK}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                raise InUseError(f"another aggregator is at work on {self._directory}") from None
            raise
        return fd

    def _read_positions(self) -> dict[str, int]:
        """Return what an earlier aggregator has written, to whatever log."""
        try:
            with open(f"{self._directory}/{_POSITIONS}", encoding="utf-8") as file:  # noqa: PTH123
                kept: Any = json.load(file)
            return {str(name): int(position) for name, position in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _keep_positions(self) -> None:
        path = f"{self._directory}/{_POSITIONS}"
        content = json.dumps(self._written)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):  # full: a successor would write some messages again
            fd = os.open(f"{path}.new", flags, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(f"{path}.new", path)  # noqa: PTH105


def _end_torn_line(path: str, log: LogFile) -> None:
    """End the last line of the log, if one who was killed did not."""
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):
            log.write([b"\n"])
