"""A simulated process whose code is asyncio's, with a network as the shells of a job know it.

It stands where `undaunted.coordinator.wire` has sockets: connections have the same methods, tell
their handlers the same things, and end for the same reasons. What a message looks like on the wire,
and how both sides prove themselves, is left out: a server says one word, which takes a process that
runs, and then the connection is open.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any, cast

from simulator.virtual import messages as s
from simulator.virtual.loop import Loop
from simulator.virtual.network import END_OF_FILE, REFUSED
from simulator.virtual.schedule import NS_PER_MS, NS_PER_S
from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.connection import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection, Handler

# What a server says first.
READY = "ready"
_LOOP = "loop"  # the one timer of a process
# A process that has stood still for so long finds what has come meanwhile before its timers: so
# does asyncio, which looks at sockets first.
_STOOD_STILL_NS = 100 * NS_PER_MS
_FIRST_FREE_PORT = 40_000


class Program:
    """Runs its part of the world in a loop of its own; see `simulator.virtual.network.Process`.

    Args:
        machine: where it runs.
        listens: whether somebody listens at an address already.

    Attributes:
        loop: its own.
    """

    def __init__(self, machine: str, listens: Callable[[str], bool]) -> None:
        self.loop = Loop((OSError, WireError))
        self.machine = machine
        self._listens = listens
        self._out: list[s.Command] = []
        self._timer: int | None = None  # when it has been set to
        self._late = False
        self._links: dict[int, Link] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._made = 0
        self._handler: Handler | None = None
        self._ports: set[int] = set()
        self._take: dict[type, Callable[[Any], None]] = {
            s.Started: lambda _: self.started(),
            s.Received: self._received,
            s.TimerFired: self._timer_fired,
            s.Told: lambda event: self.told(event.what),
            s.Accepted: self._accepted,
            s.Connected: self._connected,
            s.ConnectFailed: self._connect_failed,
            s.Closed: self._closed,
        }

    # --- to be filled in ------------------------------------------------------------------------

    def started(self) -> None:
        """The process begins."""

    def told(self, what: Any) -> None:
        """Something comes from outside of the network."""

    def exit(self) -> None:
        """End the process."""
        self.put(s.Exit())

    # --- for the simulation ---------------------------------------------------------------------

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
        loop = self.loop
        loop.now = now
        out = self._out = []
        loop.run(self._take[type(event)], event)
        due = loop.due_ns()
        if due is not None and due != self._timer:
            self._timer = due
            out.append(s.SetTimer(_LOOP, max(0, due - now)))
        return out

    def put(self, command: s.Command) -> None:
        """Have something done once the event has been handled."""
        self._out.append(command)

    # --- what the shells need (see `undaunted.coordinator.wire.network.Network`) -----------------

    def now_ns(self) -> int:
        """Virtual time."""
        return self.loop.now

    async def connect(
        self, address: str, handler: Handler, *, longest: int, timeout_s: float
    ) -> Connection:
        """Connect; see `undaunted.coordinator.wire.client.connect`.

        Raises:
            WireError: there is no connection; says why.
        """
        del longest
        self._made += 1
        label = f"{address} #{self._made}"
        attempt = self._attempts[label] = _Attempt(address, handler, self.loop.create_future())
        self.put(s.Connect(label, address, round(timeout_s * NS_PER_S)))
        timer = self.loop.call_later(timeout_s, attempt.fail, errno.ETIMEDOUT)
        try:
            return cast("Connection", await attempt.result)
        except BaseException:
            if attempt.link is not None:
                attempt.link.drop("given up")
            raise
        finally:
            timer.cancel()
            self._attempts.pop(label, None)

    def server(
        self, port: int, handler: Handler, *, nodes: int, say: Callable[[str], None]
    ) -> Server:
        """Make a server; see `undaunted.coordinator.wire.server.Server`."""
        del nodes, say
        return Server(self, port, handler)

    def listen(self, port: int, handler: Handler) -> int:
        """Listen; return the port.

        Raises:
            WireError: somebody else does.
        """
        if port == 0:
            port = _FIRST_FREE_PORT
            while self._is_taken(port):
                port += 1
        elif self._is_taken(port):
            number = errno.EADDRINUSE
            raise WireError(f"cannot listen at :{port}: {_describe(number)}", number=number)
        self._handler = handler
        self._ports.add(port)
        self.put(s.Listen(f"{self.machine}:{port}"))
        return port

    def _is_taken(self, port: int) -> bool:
        return port in self._ports or self._listens(f"{self.machine}:{port}")

    def accepted(self) -> list[Link]:
        """Return the connections that others have made."""
        return [link for link in self._links.values() if link.attempt is None]

    def forget(self, number: int) -> None:
        """A connection is over."""
        self._links.pop(number, None)

    # --- events ---------------------------------------------------------------------------------

    def _timer_fired(self, _event: s.TimerFired) -> None:
        due, self._timer = self._timer, None
        stood_still = due is not None and self.loop.now - due > _STOOD_STILL_NS
        if stood_still and not self._late:
            self._late = True  # it is set again, and fires after what has come
            return
        self._late = False
        self.loop.fire()

    def _received(self, event: s.Received) -> None:
        link = self._links.get(event.connection)
        if link is not None:
            link.take(event.message)

    def _accepted(self, event: s.Accepted) -> None:
        if self._handler is None:
            return
        link = self._links[event.connection] = Link(
            self, event.connection, Address(event.address, 0), self._handler
        )
        link.node = event.address
        self.put(s.Send(event.connection, READY))
        link.open()

    def _connected(self, event: s.Connected) -> None:
        attempt = self._attempts.get(event.label)
        if attempt is None or attempt.result.done():
            self.put(s.Close(event.connection))
            return
        machine, _, port = attempt.address.rpartition(":")
        link = Link(self, event.connection, Address(machine, int(port)), attempt.handler, attempt)
        self._links[event.connection] = attempt.link = link

    def _connect_failed(self, event: s.ConnectFailed) -> None:
        attempt = self._attempts.get(event.label)
        if attempt is not None:
            refused = event.reason == REFUSED
            attempt.fail(errno.ECONNREFUSED if refused else errno.ETIMEDOUT)

    def _closed(self, event: s.Closed) -> None:
        link = self._links.get(event.connection)
        if link is not None:
            link.end(event.reason)


class _Attempt:
    """One try to get a connection."""

    def __init__(self, address: str, handler: Handler, result: asyncio.Future[Link]) -> None:
        self.address, self.handler, self.result = address, handler, result
        self.link: Link | None = None

    def fail(self, number: int) -> None:
        """There will be none."""
        if not self.result.done():
            self.result.set_exception(
                WireError(f"{self.address}: {_describe(number)}", number=number)
            )
            self.result.exception()  # has been seen, should nobody wait any more


class Link:
    """A connection; see `undaunted.coordinator.wire.connection.Connection`.

    Attributes:
        attempt: of which it came, None = the other side has made it.
    """

    def __init__(
        self,
        program: Program,
        number: int,
        peer: Address,
        handler: Handler,
        attempt: _Attempt | None = None,
    ) -> None:
        self.number, self.peer, self.node, self.longest = number, peer, "", 0
        self.attempt = attempt
        self.is_open = False
        self.was_ended = False  # by the other side
        self.in_order = False  # and its process has closed it
        self._ends = False
        self._program, self._number, self._handler = program, number, handler
        self._was_open = False

    def send(self, message: Any) -> bool:
        """Send a message, unless it ends."""
        if self.is_open:
            self._program.put(s.Send(self._number, message))
        return self.is_open

    def close(self, reason: str) -> None:
        """End it; `Handler.closed` follows."""
        if not self._ends:
            self._program.put(s.Close(self._number))
            self._finish(reason)

    drop = close

    # --- for its program ------------------------------------------------------------------------

    def take(self, message: Any) -> None:
        """A message has come, or the word that opens it."""
        if self.is_open:
            self._handler.received(cast("Connection", self), message)
        elif message is READY and self.attempt is not None and not self._ends:
            if not self.attempt.result.done():
                self.attempt.result.set_result(self)
            self.open()

    def open(self) -> None:
        """Both sides know of it."""
        self.is_open = self._was_open = True
        self._handler.opened(cast("Connection", self))

    def end(self, reason: str) -> None:
        """The other side, or its machine, has ended it."""
        if self._ends:
            return
        self.was_ended = True
        self.in_order = reason == END_OF_FILE and self.is_open
        what = "the other side closed the connection" if self.in_order else reason
        self._finish(what)

    def _finish(self, reason: str) -> None:
        self._ends, self.is_open = True, False
        self._program.loop.call_soon(self._over, reason)

    def _over(self, reason: str) -> None:
        self._program.forget(self._number)
        if self._was_open:
            self._handler.closed(cast("Connection", self), reason)
        elif self.attempt is not None:
            self.attempt.fail(errno.ECONNRESET)


class Server:
    """Listens at one port; see `undaunted.coordinator.wire.server.Server`."""

    def __init__(self, program: Program, port: int, handler: Handler) -> None:
        self.port = port
        self._program, self._handler = program, handler

    async def start(self) -> None:
        """Listen.

        Raises:
            WireError: somebody else does.
        """
        self.port = self._program.listen(self.port, self._handler)

    async def close(self, reason: str) -> None:
        """End all connections that others have made."""
        for link in self._program.accepted():
            link.close(reason)
        while self._program.accepted():
            await asyncio.sleep(0)


def _describe(number: int) -> str:
    return os.strerror(number).lower()
