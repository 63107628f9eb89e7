"""The log of a round: the output of all local ranks in one file, each line with its rank.

Ranks write to files of their own, so nothing here can hold them up. A thread copies what these
files gain. Memory is bounded by the size of a chunk, whatever the ranks print.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.directories import make_private
from undaunted.fault_tolerance.output.filters import DeviceListFilter, LineFilter
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.fault_tolerance.output.line_copy import LineCopy
from undaunted.logs.growth import Growth
from undaunted.logs.ranks import rank_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.fault_tolerance.output.job_logs import OpenLog
    from undaunted.logs.log_file import LogFile

_BATCH_S = 0.02  # a rank that prints all the time wakes us at most this often
_RETRY_S = 1.0  # after the log could not be written to
_PATIENCE_S = 5.0  # while closing: how long nothing may be copied before that is given up


class Source(NamedTuple):
    """One file that a rank writes to."""

    path: str
    rank: int  # in the job
    temporary: bool  # nobody asked for it: its space is freed, and it is removed in the end
    prefix: str | None = None  # of its lines; None = its rank, see `rank_prefix`


class RoundLog:
    """Copies the lines of files into one log until closed. Files begin at their present end.

    ``problems`` says, once closed, what is missing in the log, and why.
    """

    def __init__(
        self,
        path: str,
        sources: Sequence[Source],
        world_size: int,
        make_filter: Callable[[], LineFilter] = DeviceListFilter,
        open_log: OpenLog = open_here,
    ) -> None:
        """Prepare.

        Args:
            path: the log, which is appended to.
            sources: the files of the ranks.
            world_size: number of ranks of the job, for the width of the prefix.
            make_filter: called for every file; see `LineFilter`.
            open_log: opens the log.
        """
        self.problems: list[str] = []
        self._path = path
        self._sources = sources
        self._world_size = world_size
        self._make_filter = make_filter
        self._open_log = open_log
        self._copies: list[tuple[LineCopy, Source]] = []
        self._growth: Growth | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._complete = False
        self._steps = 0  # of copying; tells whether the thread gets on

    def start(self) -> None:
        """Open everything and begin to copy. Call it before the ranks start. Never raises."""
        try:
            log = self._open_log(self._path, self._unread_bytes)
        except OSError as error:
            self._say_unwritten(error.strerror or str(error))
            return
        try:
            self._growth = Growth()
            self._open(self._growth)
        except OSError as error:
            self._say_unwritten(error.strerror or str(error))
            self._release(log)
            return
        self._thread = threading.Thread(
            target=self._run, args=(log, self._growth), name="undaunted-round-log", daemon=True
        )
        self._thread.start()

    def request_close(self) -> None:
        """Have what is in the files now copied and the thread end. Does not wait."""
        self._closing = True
        if self._growth is not None:
            self._growth.wake()

    def close(self, timeout_s: float) -> bool:
        """Wait until the log is complete, then remove temporary files.

        Args:
            timeout_s: longest wait in all; it ends sooner when copying does not get on.

        Returns:
            False if the disk hangs; the thread then ends with the process.
        """
        self.request_close()
        if self._thread is None:
            return True
        self._join(self._thread, time.monotonic() + timeout_s)
        if self._thread.is_alive():
            self._say_unwritten("not all could be written in time")
            return False
        self._thread = None
        if self._growth is not None:
            self._growth.close()
            self._growth = None
        if self._complete:
            self._remove_temporary()
        return True

    def _join(self, thread: threading.Thread, deadline: float) -> None:
        steps = -1
        while thread.is_alive() and self._steps != steps and time.monotonic() < deadline:
            steps = self._steps
            thread.join(min(_PATIENCE_S, max(0.0, deadline - time.monotonic())))

    def _open(self, growth: Growth) -> None:
        for source in self._sources:
            make_private(Path(source.path).parent)
            prefix = source.prefix
            if prefix is None:
                prefix = rank_prefix(source.rank, self._world_size)
            copy = LineCopy(
                source.path,
                prefix.encode(errors="surrogateescape"),
                self._make_filter(),
                reclaim=source.temporary,
            )
            self._copies.append((copy, source))
            growth.watch(source.path)

    def _run(self, log: LogFile, growth: Growth) -> None:
        try:
            self._follow(log, growth)
        finally:
            growth.stop_watching()
            self._release(log)

    def _follow(self, log: LogFile, growth: Growth) -> None:
        while True:
            closing = self._closing  # read before the files: what came before it is copied
            looked_at = time.monotonic()
            found = self._copy_more(log, growth)
            if log.blocked:
                missing = self._unread_bytes()
                self._say_unwritten(f"{log.error}; more than {missing} bytes are missing")
                return
            if closing and not found:
                break
            if not found:
                growth.wait(looked_at + _BATCH_S)
        self._complete = self._finish_lines(log, growth)

    def _unread_bytes(self) -> int:
        return sum(copy.unread_bytes() for copy, _ in self._copies)

    def _copy_more(self, log: LogFile, growth: Growth) -> bool:
        """Copy one chunk of every file; False if no file had anything new."""
        found = False
        for copy, _ in self._copies:
            found = self._copy_from(copy, log, growth) or found
            if log.blocked:
                break
        return found

    def _copy_from(self, copy: LineCopy, log: LogFile, growth: Growth) -> bool:
        """Copy one chunk, or as many as a long line has."""
        found = False
        while copy.step(log):
            found = True
            self._steps += 1
            if not self._flushed(log, growth) or not copy.in_line:
                break
        return found

    def _finish_lines(self, log: LogFile, growth: Growth) -> bool:
        for copy, _ in self._copies:
            if copy.finish(log):
                self._flushed(log, growth)
                self._copy_from(copy, log, growth)
            if log.blocked:
                self._say_unwritten(log.error)
                return False
            if (missing := copy.unread_bytes()) > 0:
                self._say_unwritten(f"{missing} bytes of {copy.path} were not copied")
                return False
        return True

    def _flushed(self, log: LogFile, growth: Growth) -> bool:
        """Wait until the log takes what is waiting for it; False if it does not until the end."""
        while log.blocked:
            if self._closing:
                log.flush()
                return not log.blocked
            now = time.monotonic()
            growth.wait(now + _RETRY_S, now + _RETRY_S)
            log.flush()
        return True

    def _release(self, log: LogFile) -> None:
        for copy, _ in self._copies:
            copy.close()
        log.close()

    def _remove_temporary(self) -> None:
        for source in self._sources:
            if source.temporary:
                path = Path(source.path)
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()  # only if nothing else is in it
                    path.parent.parent.rmdir()

    def _say_unwritten(self, why: str) -> None:
        kept = sorted({str(Path(source.path).parent.parent) for source in self._sources})
        self.problems.append(
            f"the log {self._path} is incomplete: {why}; what the ranks printed is in "
            f"{', '.join(kept)}"
        )
