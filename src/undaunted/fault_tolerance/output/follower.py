"""A thread that brings what files of ranks gain to one sink; see docs/design/output.md.

It is woken by inotify (or looks twice a second where that is not to be had), takes a bounded piece
of each file in turn, and alone waits for its sink.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output.growth import Growth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.fault_tolerance.output.line_copy import LineCopy
    from undaunted.fault_tolerance.output.rank_file import Bound
    from undaunted.fault_tolerance.output.sink import Sink

BATCH_S = 0.02  # a rank that prints all the time wakes it at most this often
_RETRY_S = 1.0  # after the sink could not be written to
_LATE_S = 5.0  # for what is left, where the disk has answered after the round only
_PATIENCE_S = 5.0  # while closing: how long there may be no step before that is given up
_GRACE_S = 0.2  # beyond the deadline, for what is missing to be counted


class Follower:
    """Follows files from `start` to `close`.

    Attributes:
        problems: what is missing in the sink, why, and where it is instead.
    """

    def __init__(
        self,
        title: str,
        open_sink: Callable[[Follower], Sink],
        parts: Sequence[LineCopy | Bound],
        *,
        where: str,
        limit_s: float,
        batch_s: float = BATCH_S,
    ) -> None:
        """Prepare.

        Args:
            title: what the sink is, for people.
            open_sink: opens it; may raise OSError.
            parts: what is done with each file.
            where: directory with all that ranks have printed.
            limit_s: how long the rest may take once it is asked to close.
            batch_s: least time from one look at all files to the next.
        """
        self.problems: list[str] = []
        self._title, self._open_sink, self._where = title, open_sink, where
        self._parts: list[LineCopy | Bound] = []
        self._wanted = parts
        self._limit_s, self._batch_s = limit_s, batch_s
        self._growth: Growth | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._deadline = 0.0  # time.monotonic(); valid when closing
        self._steps = 0  # whether the thread gets on

    def start(self) -> None:
        """Open everything and begin. Call it before the ranks start. Never raises.

        On a disk that does not answer for a while, another thread may close it meanwhile.
        """
        if self._closing or not self._wanted:
            return
        try:
            growth = Growth()
        except OSError as error:
            self._lacks(_why(error))
            return
        try:
            sink = self._open_sink(self)
        except OSError as error:
            self._lacks(_why(error))
            growth.close()
            return
        for part in self._wanted:
            try:
                part.open(sink)
            except OSError as error:
                self.problems.append(part.complaint(_why(error)))
            else:
                self._parts.append(part)
                growth.watch(part.file.path)
        self._growth = growth
        if self._closing:  # late: what ranks have printed until now is not lost
            self._deadline = time.monotonic() + _LATE_S
            growth.wake()
        thread = threading.Thread(
            target=self._run, args=(sink, growth), name="undaunted-follower", daemon=True
        )
        thread.start()
        self._thread = thread

    def request_close(self) -> None:
        """Have what is in the files now copied, and the thread end. Does not wait."""
        if self._closing:
            return
        self._deadline = time.monotonic() + self._limit_s
        self._closing = True
        if self._growth is not None:
            self._growth.wake()

    def close(self) -> bool:
        """Wait until all is copied, within the limit; it ends sooner when that does not get on.

        Returns:
            False if a disk or a console hangs; the thread then ends by itself or with the process.
        """
        self.request_close()
        thread = self._thread
        if thread is None:
            return True
        steps, end = -1, self._deadline + _GRACE_S
        while thread.is_alive() and steps != self._steps and (left := end - time.monotonic()) > 0:
            steps = self._steps
            thread.join(min(_PATIENCE_S, left))
        if thread.is_alive():
            self._lacks("not all could be written in time")
            return False
        return True

    def wait_for_writer(self, fd: int, seconds: float) -> bool:
        """Wait until ``fd`` may be writable, for a sink; False when the time is over."""
        assert self._growth is not None, "it was started"
        closing = self._closing  # the wake-up stays readable and would end each wait
        if closing:
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        self._growth.wait_for_writer(fd, seconds, until_woken=not closing)
        return not closing or time.monotonic() < self._deadline

    def unread_bytes(self) -> int:
        """Return how much of the files was not copied yet."""
        return sum(part.unread_bytes() for part in self._parts)

    def _run(self, sink: Sink, growth: Growth) -> None:
        try:
            self._follow(sink, growth)
            self._finish(sink, growth)
            sink.flush()
            self._count(sink)
        finally:
            for part in self._parts:
                part.close(complete=not self.problems)
            sink.close()
            growth.close()

    def _follow(self, sink: Sink, growth: Growth) -> None:
        while not sink.blocked:
            closing = self._closing  # read before the files: what came before it is copied
            looked_at = time.monotonic()
            if closing and looked_at >= self._deadline:
                return
            moved = False
            for part in self._parts:
                moved = self._step(part, sink, growth) or moved
                if sink.blocked:
                    return
            if not moved:
                if closing:
                    return
                growth.wait(looked_at + self._batch_s, writable=sink.awaited)
                sink.flush()

    def _step(self, part: LineCopy | Bound, sink: Sink, growth: Growth) -> bool:
        """Take one step of a file, or as many as a long line has; False if there is nothing new."""
        moved = False
        while part.step():
            moved = True
            self._steps += 1
            if not self._flushed(sink, growth) or not part.in_line:
                break
        return moved

    def _flushed(self, sink: Sink, growth: Growth) -> bool:
        """Wait until the sink takes what is waiting for it; False if it does not until the end."""
        while sink.blocked:
            if self._closing:
                sink.flush()
                return not sink.blocked
            now = time.monotonic()
            growth.wait(now + _RETRY_S, now + _RETRY_S)
            sink.flush()
        return True

    def _finish(self, sink: Sink, growth: Growth) -> None:
        for part in self._parts:
            if sink.blocked:
                return
            try:
                part.finish()
            except OSError as error:
                self.problems.append(part.complaint(_why(error)))
            if self._flushed(sink, growth):
                self._step(part, sink, growth)

    def _count(self, sink: Sink) -> None:
        """Say what is missing."""
        unread = self.unread_bytes()
        skipped = sum(part.skipped_bytes() for part in self._parts)
        if unread or sink.missing_lines or sink.blocked:
            why = sink.error or "it did not take them in time"
            self._lacks(f"{sink.missing_lines} lines and {unread} bytes are missing ({why})")
        if skipped:
            self.problems.append(
                f"{skipped} bytes of the ranks' output did not come to {self._title}: "
                "--log-max-bytes removed them first; raise it"
            )

    def _lacks(self, why: str) -> None:
        self.problems.append(
            f"{self._title} is incomplete: {why}; what the ranks printed is in {self._where}"
        )


def _why(error: OSError) -> str:
    return error.strerror or str(error)
