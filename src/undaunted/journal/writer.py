"""Writes the journal without ever making its caller wait.

``record`` encodes the event and puts the line into a bounded queue; a daemon thread does
everything that touches the file system. While that fails, the newest events are kept, and it is
tried again after a while. What cannot be kept, or comes while the disk hangs, is counted as lost.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from undaunted.base.deadline import within
from undaunted.journal import lines
from undaunted.journal.appender import Appender
from undaunted.journal.events import Event, EventsLost, JobEnded, RoundStarted, RoundStopped
from undaunted.journal.files import FileSystem, replace_text
from undaunted.journal.owner import this_process

if TYPE_CHECKING:
    from collections.abc import Callable

_SYNC_AFTER = (RoundStopped, JobEnded)
_KEPT_BYTES = 1 << 20  # some thousand events
# After a failure, until the next attempt; twice as long each time.
_RETRY_S = 0.25
_LONGEST_RETRY_S = 8.0


@dataclass(frozen=True, slots=True)
class _Line:
    data: bytes
    sync: bool

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class _Text:
    path: str
    text: str

    @property
    def size(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class _Lost:
    count: int
    reason: str
    size: int = 0


_Item = _Line | _Text | _Lost


class Clock(Protocol):
    """The two clocks of an event, as in the module ``time``."""

    def time(self) -> float:
        """Unix time, seconds."""

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC, nanoseconds."""


class JournalWriter:
    """The journal of one node.

    Owns one daemon thread and one descriptor; ``close`` releases both, unless the disk hangs: then
    it returns in time and the thread lets go when the disk answers, or with the process.
    Methods may be called from any thread and from signal handlers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        node: str,
        version: str = "",
        say: Callable[[str], None] | None = None,
        max_events: int = 10_000,
        max_bytes: int = 8 << 20,
        clock: Clock = time,
        fs: FileSystem = os,
    ) -> None:
        """Start the thread, which creates the file. Nothing about the file is raised here.

        Args:
            path: the journal; created with mode 0600, appended to if it exists.
            node: name put into every event that has none.
            version: version of undaunted, for the first line.
            say: called in the journal's thread with a message when the journal cannot be
                written, and when another file cannot; once each.
            max_events: most events and texts waiting.
            max_bytes: most bytes waiting.
            clock: the clock of ``Event.t``, and Unix time.
            fs: the file system.
        """
        self.path = os.fspath(path)
        self._node = node
        self._version = version
        self._say = say
        self._subscribers: list[Callable[[Event], None]] = []
        self._round = -1
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._clock = clock
        self._fs = fs
        self._appender = Appender(
            self.path,
            header=self._header,
            lost_line=self._lost_line,
            keep_bytes=_KEPT_BYTES,
            fs=fs,
        )
        self._retry_s = _RETRY_S
        self._retry_at = 0.0  # time.monotonic(); while the appender is behind
        self._warned: set[str] = set()
        # Its lock can be taken again by a signal handler that interrupts the holder.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[_Item] = deque()
        self._waiting_events = 0  # in the queue or being written
        self._waiting_bytes = 0
        self._accepted = 1  # the first line of the file
        self._finished = 0
        self._dropped = 0
        self._drop_reason = ""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="undaunted-journal", daemon=True)
        self._thread.start()

    def subscribe(self, take: Callable[[Event], None]) -> None:
        """Have ``take`` called with every event from now on, by the thread that records it.

        It must not wait; what it raises is dropped. What the disk does not take comes as well.
        """
        self._subscribers.append(take)

    @property
    def lost(self) -> int:
        """Return how many events have been lost so far."""
        return self._appender.lost_total + self._dropped

    def record(self, event: Event) -> None:
        """Take an event for writing. Never blocks, never raises: what cannot be kept is counted.

        Args:
            event: ``t``, ``wall``, ``node`` and ``round`` are filled in if they are not given.
        """
        if type(event) is RoundStarted:
            self._round = event.round
        try:
            event = self._stamp(event)
            line = lines.encode(event)
        except Exception as error:  # noqa: BLE001 - a malformed event must not stop the agent
            self._drop(f"{type(event).__name__} cannot be written: {error}")
            return
        if not self._put(_Line(line, isinstance(event, _SYNC_AFTER))):
            self._drop("the journal could not keep up")
        for take in self._subscribers:
            with contextlib.suppress(Exception):
                take(event)

    def write_text(self, path: str | os.PathLike[str], text: str) -> bool:
        """Take a whole file for writing: atomically, mode 0600, after the events recorded so far.

        Returns:
            False if too much is waiting already; the text is dropped then.
        """
        return self._put(_Text(os.fspath(path), text))

    def flush(self, timeout_s: float) -> bool:
        """Wait until the first line and everything taken so far was written, kept or given up.

        Returns:
            False if time ran out.
        """
        with self._changed:
            target = self._accepted
            return self._changed.wait_for(lambda: self._finished >= target, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what is waiting and end the thread; later events are dropped.

        Returns:
            False if time ran out: the disk hangs, and the thread is left behind.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # Caller's side.

    def _stamp(self, event: Event) -> Event:
        now_ns = self._clock.monotonic_ns()
        t = event.t or now_ns
        return msgspec.structs.replace(
            event,
            t=t,
            wall=event.wall or round(self._clock.time() - (now_ns - t) / 1e9, 6),
            node=event.node or self._node,
            round=self._round if event.round < 0 else event.round,
        )

    def _put(self, item: _Item) -> bool:
        with self._changed:
            if (
                self._closing
                or self._waiting_events >= self._max_events
                or self._waiting_bytes + item.size > self._max_bytes
            ):
                return False
            if self._dropped:
                self._enqueue(_Lost(self._dropped, self._drop_reason))
                self._dropped = 0
            self._enqueue(item)
            self._changed.notify_all()
            return True

    def _enqueue(self, item: _Item) -> None:
        self._queue.append(item)
        self._waiting_events += 1
        self._waiting_bytes += item.size
        self._accepted += 1

    def _drop(self, reason: str) -> None:
        with self._changed:
            self._dropped += 1
            self._drop_reason = reason

    # The thread's side.

    def _run(self) -> None:
        self._append([])
        self._note_finished(1)
        while (batch := self._take()) is not None:
            self._process(batch)
            with self._changed:
                self._waiting_events -= len(batch)
                self._waiting_bytes -= sum(item.size for item in batch)
                self._note_finished(len(batch))
        self._finish()

    def _note_finished(self, count: int) -> None:
        with self._changed:
            self._finished += count
            self._changed.notify_all()

    def _take(self) -> list[_Item] | None:
        """Wait for work; return all of it, also none when it is time to try again what was kept.

        None when the writer is closed and all is done.
        """
        with self._changed:
            wait_s = self._retry_at - time.monotonic() if self._appender.behind else None
            self._changed.wait_for(lambda: self._queue or self._closing, wait_s)
            batch = list(self._queue)
            self._queue.clear()
            return None if self._closing and not batch else batch

    def _process(self, batch: list[_Item]) -> None:
        pending: list[_Line] = []
        for item in batch:
            if isinstance(item, _Line):
                pending.append(item)
                continue
            self._append(pending)
            pending = []
            if isinstance(item, _Lost):
                self._appender.note_lost(item.count, item.reason)
            else:
                self._write_text(item)
        self._append(pending)

    def _append(self, batch: list[_Line]) -> None:
        if self._appender.behind and time.monotonic() < self._retry_at and not self._closing:
            self._appender.keep([line.data for line in batch])
            return
        problem = self._appender.append([line.data for line in batch])
        if self._appender.behind:
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        else:
            self._retry_s = _RETRY_S
        if not problem and any(line.sync for line in batch):
            problem = self._appender.sync()
        if problem:
            self._warn(
                "journal",
                f"journal {self.path} cannot be written ({problem}): the newest events are kept "
                "until it can, others are counted. The job goes on; free or repair that file "
                "system.",
            )

    def _write_text(self, item: _Text) -> None:
        try:
            replace_text(self._fs, item.path, item.text)
        except (OSError, ValueError) as error:
            self._warn("text", f"file {item.path} cannot be written ({error}). The job goes on.")

    def _finish(self) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._appender.note_lost(dropped, self._drop_reason)
        if self._appender.behind:
            self._append([])
        self._appender.give_up()
        self._appender.close()

    def _warn(self, kind: str, message: str) -> None:
        if self._say is None or kind in self._warned:
            return
        self._warned.add(kind)
        with contextlib.suppress(Exception):  # the journal goes on, whatever the callback does
            self._say(message)

    def _header(self) -> bytes:
        opened = this_process(self._clock.monotonic_ns(), self._version)
        return lines.encode(self._stamp(opened))

    def _lost_line(self, count: int, reason: str) -> bytes:
        lost = EventsLost(t=self._clock.monotonic_ns(), count=count, reason=reason)
        return lines.encode(self._stamp(lost))


def append_last(path: str | os.PathLike[str], event: Event, timeout_s: float = 1.0) -> None:
    """Append an event to the journal of a writer that is gone. Never raises.

    Args:
        path: the journal; nothing is done if there is none.
        event: with its time, node and round.
        timeout_s: longest wait for the disk.
    """

    def append() -> str:
        if not os.path.isfile(path):  # noqa: PTH113 - as `os` is the file system here
            return ""
        appender = Appender(os.fspath(path), header=bytes, lost_line=lambda *_: b"")
        try:
            return appender.append([lines.encode(event)])
        finally:
            appender.close()

    within(timeout_s, append, "")
