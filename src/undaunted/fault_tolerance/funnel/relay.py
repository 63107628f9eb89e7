"""A leaf of the log server: passes on what launchers send over one connection, and the answers.

It keeps nothing that matters. When it ends, or its connection does, the launchers connect again,
and what was not answered comes again.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from undaunted.coordinator.wire import client
from undaunted.coordinator.wire.connection import WireError
from undaunted.fault_tolerance.funnel import messages as w
from undaunted.fault_tolerance.funnel.attendance import Attendance

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.handshake import Terms
    from undaunted.fault_tolerance.funnel.config import FunnelConfig

_RETRY_S = 1.0
_SLACK_BYTES = w.MOST_BYTES


class Relay:
    """Handler of a server's connections, on its loop.

    Args:
        config: what is chosen.
        peers: how many connections may be expected; they share ``queue_bytes``.
        above: address of the server that writes.
        terms, tls: to connect to it.
        say: shows a line.
    """

    def __init__(
        self,
        config: FunnelConfig,
        peers: int,
        above: str,
        terms: Terms,
        tls: ssl.SSLContext | None,
        say: Callable[[str], None],
    ) -> None:
        self._window = w.window(config.queue_bytes, peers)
        self._above, self._terms, self._tls, self._say = above, terms, tls, say
        self._peers: dict[Connection, int] = {}  # bytes of each that are not written
        self._names: dict[Connection, str] = {}
        self._senders: dict[str, Connection] = {}
        self._upper = _Upper(self)
        self._queue: deque[w.Lines] = deque()
        self._sent: deque[w.Lines] = deque()  # and not answered
        self._sent_bytes = 0
        self._upper_window = w.WINDOW_BYTES
        self._attendance = Attendance(config.settle_s, expected=0)
        self._told = False
        self._link: Connection | None = None
        self._connecting = asyncio.get_running_loop().create_task(self._keep_connected())

    async def finish(self, timeout_s: float) -> bool:
        """Wait until nobody sends any more."""
        if not await self._attendance.over(timeout_s):
            self._say(f"{len(self._peers)} launchers are still sending logs; not waiting longer")
        self._connecting.cancel()
        await asyncio.gather(self._connecting, return_exceptions=True)
        if self._link is not None:
            self._link.close("the log server ends")
        return not self._peers

    # --- launchers ------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Wait for its first message."""
        self._peers[connection] = 0
        self._attendance.come()
        if self._link is None:
            connection.close("the log server is not there")

    def received(self, connection: Connection, message: Any) -> None:
        """Pass it on, in its turn."""
        if isinstance(message, w.Open):
            self._introduce(connection, message)
        elif self._senders.get(message.sender) is not connection:
            connection.drop("it sends lines of somebody it has not introduced")
        else:
            waiting = self._peers[connection] + w.size(message)
            if waiting > self._window + _SLACK_BYTES:
                connection.drop(f"{waiting} bytes of it wait, {self._window} are allowed")
                return
            self._peers[connection] = waiting
            self._queue.append(message)
            self._pump()

    def closed(self, connection: Connection, reason: str) -> None:
        """Forget it: what is not answered will come again."""
        del reason
        del self._peers[connection]
        name = self._names.pop(connection, "")
        if self._senders.get(name) is connection:
            del self._senders[name]
            self._forget_sent(name, sys.maxsize)
            self._pump()
        self._attendance.leave()

    def _introduce(self, connection: Connection, message: w.Open) -> None:
        if connection in self._names or len(message.sender) > w.LONGEST_NAME:
            connection.drop("it has more than one name, or one that is too long")
            return
        self._names[connection] = message.sender
        self._senders[message.sender] = connection
        if self._link is not None:
            self._link.send(message)

    # --- the server above -----------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        while True:
            try:
                link = await client.connect(
                    self._above, self._upper, self._terms, tls=self._tls, messages=w.ToSender
                )
            except WireError as error:
                self._complain(str(error))
            else:
                self._link, self._told = link, False
                await self._upper.over.wait()
                self._lose_link()
            await asyncio.sleep(_RETRY_S)

    def answered(self, message: w.Ready | w.Written) -> None:
        """The server above has said something."""
        if isinstance(message, w.Written):
            self._forget_sent(message.sender, message.number)
            self._pump()
        else:
            self._upper_window = message.window
        peer = self._senders.get(message.sender)
        if peer is None:
            return
        if isinstance(message, w.Ready):
            message = w.Ready(
                sender=message.sender,
                written=message.written,
                window=self._window,
                known=message.known,
            )
        peer.send(message)

    def _forget_sent(self, sender: str, number: int) -> None:
        """The messages of a sender up to this number are not waited for any more."""
        left: deque[w.Lines] = deque()
        for lines in self._sent:
            if lines.sender == sender and lines.number <= number:
                self._sent_bytes -= w.size(lines)
                peer = self._senders.get(lines.sender)
                if peer in self._peers:
                    self._peers[peer] -= w.size(lines)
            else:
                left.append(lines)
        self._sent = left

    def _pump(self) -> None:
        while self._link is not None and self._queue:
            lines = self._queue[0]
            if self._sent and self._sent_bytes + w.size(lines) > self._upper_window:
                return
            self._queue.popleft()
            if lines.sender not in self._senders:
                continue  # it is gone, and sends it again elsewhere
            self._sent.append(lines)
            self._sent_bytes += w.size(lines)
            self._link.send(lines)

    def _lose_link(self) -> None:
        """The launchers have to send again what was not answered; that begins with a connection."""
        self._link = None
        self._upper = _Upper(self)
        self._queue.clear()
        self._sent.clear()
        self._sent_bytes = 0
        self._complain("the connection is lost")
        for peer in list(self._peers):
            peer.close("the log server is not there")

    def _complain(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._say(f"the log server at {self._above} cannot be reached ({why}); trying again")


class _Upper:
    """Handler of the connection to the server above."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.over = asyncio.Event()

    def opened(self, connection: Connection) -> None:
        """Nothing is said before a launcher comes."""

    def received(self, connection: Connection, message: Any) -> None:
        """An answer for a launcher."""
        del connection
        self._relay.answered(message)

    def closed(self, connection: Connection, reason: str) -> None:
        """All launchers have to begin again."""
        del connection, reason
        self.over.set()
