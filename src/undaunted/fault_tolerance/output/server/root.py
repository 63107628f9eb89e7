"""The log server: takes lines from launchers, and answers when they are written."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undaunted.base.deadline import wait_for
from undaunted.coordinator.wire.server import Complaints
from undaunted.fault_tolerance.output.server import messages as w
from undaunted.fault_tolerance.output.server.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.fault_tolerance.output.server.config import LogServerConfig

_SENDERS = 65536  # that are remembered
# Beyond a window, before a peer is not trusted any more: one message may always be on its way.
_SLACK_BYTES = w.MOST_BYTES


@dataclass(slots=True)
class _Sender:
    """A launcher.

    Attributes:
        connection: where it is heard of, None = it is gone.
        taken: number of its last message that was handed to the writer, -1 = none.
        written: number of its last message that was written, -1 = none.
    """

    connection: Connection | None
    taken: int = -1
    written: int = -1


class Root:
    """Handler of a server's connections, on its loop.

    Args:
        config: what is chosen.
        peers: how many connections may be expected; they share ``queue_bytes``.
        say: shows a line.
        expected: how many connections there are at least when all is well; 0 = not known.
    """

    def __init__(
        self, config: LogServerConfig, peers: int, say: Callable[[str], None], expected: int = 0
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._window = w.window(config.queue_bytes, peers)
        self._say = say
        self._complaints = Complaints()
        self._senders: dict[str, _Sender] = {}
        self._waiting: dict[Connection, int] = {}  # bytes that are not written yet
        self._owners: dict[tuple[str, int], Connection] = {}
        self._attendance = Attendance(config.settle_s, expected)
        self._writer = Writer(config.root, self._tell_written, self._tell)

    async def finish(self, timeout_s: float) -> bool:
        """Wait until nobody sends any more, then write the rest.

        Returns:
            False if something is not written within ``timeout_s``.
        """
        deadline = self._loop.time() + timeout_s
        if not await self._attendance.over(timeout_s):
            self._say(f"{len(self._waiting)} launchers are still sending logs; not waiting longer")
        left_s = max(1.0, deadline - self._loop.time())
        return await asyncio.to_thread(self._writer.close, left_s)

    # --- for the server -------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Wait for its first message."""
        self._waiting[connection] = 0
        self._attendance.come()

    def received(self, connection: Connection, message: Any) -> None:
        """A launcher introduces itself, or sends lines."""
        if isinstance(message, w.Open):
            self._open(connection, message.sender)
        else:
            self._take(connection, message)

    def closed(self, connection: Connection, reason: str) -> None:
        """Forget a connection; lines that have come over it are written all the same."""
        del reason
        del self._waiting[connection]
        for sender in self._senders.values():
            if sender.connection is connection:
                sender.connection = None
        self._attendance.leave()

    # --- inside ---------------------------------------------------------------------------------

    def _open(self, connection: Connection, name: str) -> None:
        if len(name) > w.LONGEST_NAME:
            connection.drop("its name is too long")
            return
        known = self._senders.pop(name, None)
        sender = known or _Sender(connection)
        sender.connection = connection
        self._senders[name] = sender
        while len(self._senders) > _SENDERS:
            del self._senders[next(iter(self._senders))]
        ready = w.Ready(
            sender=name, written=sender.written, window=self._window, known=known is not None
        )
        connection.send(ready)

    def _take(self, connection: Connection, lines: w.Lines) -> None:
        sender = self._senders.get(lines.sender)
        waiting = self._waiting.get(connection, 0) + w.size(lines)
        if sender is None:
            connection.drop("it sends lines of somebody it has not introduced")
        elif sender.connection is not connection:
            pass  # it has connected again, where it sends them again
        elif sender.taken >= 0 and lines.number > sender.taken + 1:
            connection.drop(f"message {lines.number} comes after {sender.taken}")
        elif lines.number <= sender.taken:
            pass  # it came over another connection as well; the answer follows when it is written
        elif waiting > self._window + _SLACK_BYTES:
            connection.drop(f"{waiting} bytes of it wait, {self._window} are allowed")
        else:
            sender.taken = lines.number
            self._waiting[connection] = waiting
            self._owners[lines.sender, lines.number] = connection
            self._writer.add(lines)

    def _tell_written(self, batch: list[w.Lines]) -> None:
        """By the thread of the writer."""
        self._call(self._batch_written, batch)

    def _batch_written(self, batch: list[w.Lines]) -> None:
        newest: dict[str, int] = {}
        for lines in batch:
            owner = self._owners.pop((lines.sender, lines.number), None)
            if owner in self._waiting:
                self._waiting[owner] -= w.size(lines)
            newest[lines.sender] = lines.number
        for name, number in newest.items():
            sender = self._senders.get(name)
            if sender is not None:
                sender.written = number
                if sender.connection is not None:
                    sender.connection.send(w.Written(sender=name, number=number))

    def _tell(self, text: str) -> None:
        """By the thread of the writer."""
        self._call(self._complain, text)

    def _complain(self, text: str) -> None:
        for line in self._complaints.note(text, self._loop.time()):
            self._say(line)

    def _call(self, method: Callable[[Any], None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(method, argument)
        except RuntimeError:  # the loop has ended first, without waiting for the disk
            return


class Attendance:
    """Counts connections. Used on one loop.

    Args:
        settle_s: how long after its start a server may expect launchers that have tried before.
        expected: when so many have come, nobody else is expected; 0 = that is not known.
    """

    def __init__(self, settle_s: float, expected: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._settled_s = self._loop.time() + settle_s
        self._changed = asyncio.Event()
        self._expected = expected
        self._came = 0
        self.here = 0

    def come(self) -> None:
        """One more is connected."""
        self.here += 1
        self._came += 1
        if self._came == self._expected:
            self._settled_s = self._loop.time()

    def leave(self) -> None:
        """One less."""
        self.here -= 1
        self._changed.set()

    async def over(self, timeout_s: float) -> bool:
        """Wait until all have left that are or may yet come; False if that takes too long."""
        deadline = self._loop.time() + timeout_s
        while self.here or self._loop.time() < min(deadline, self._settled_s):
            left_s = (deadline if self.here else self._settled_s) - self._loop.time()
            if left_s <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._changed.wait(), left_s)
        return True
