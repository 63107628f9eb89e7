"""A guard's link to a controller in another process: one connection, made anew when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from undaunted.coordinator.protocol import MAX_LINK_BYTES
from undaunted.coordinator.wire.connection import WireError
from undaunted.inprocess.guard.links import Bye, Lease, Silence

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection, Handler
    from undaunted.inprocess.guard.service import GuardService

_DIAL_S = 3.0
# Between two tries.
_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class Connect(Protocol):
    """Connects to the controller; see `undaunted.coordinator.wire.client.connect`."""

    async def __call__(
        self, address: str, handler: Handler, /, *, longest: int, timeout_s: float
    ) -> Connection:
        """Return the connection.

        Raises:
            WireError: there is none; says why.
        """


class ControllerLink:
    """Keeps a `GuardService` connected. Also the handler of its connections."""

    def __init__(
        self,
        address: str,
        connect: Connect,
        service: GuardService,
        *,
        interval_s: float,
        silence_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Nothing is connected before `connected`.

        Args:
            address: ``HOST:PORT`` of the controller, or ``@NAME`` of its Unix socket.
            connect: makes a connection; messages are of the type `links.ToGuard`.
            service: serves the rank.
            interval_s: between two leases, seconds.
            silence_s: the link is lost if no lease was answered for this long, seconds.
            say: called with lines about lost and new connections.
        """
        self._address = address
        self._connect = connect
        self._service = service
        self._interval_s = min(interval_s, silence_s / 3)
        self._silence_s = silence_s
        self._say = say
        self._connection: Connection | None = None
        self._silence: Silence | None = None
        self._lease: asyncio.TimerHandle | None = None
        self._sent: deque[float] = deque()  # when the leases were that are not answered yet
        self._dialling: asyncio.Task[None] | None = None
        self._over = False
        self._gone = asyncio.Event()
        self._gone.set()

    async def connected(self, timeout_s: float) -> None:
        """Connect for the first time; the controller may not be there yet.

        Raises:
            WireError: it refuses this guard, or does not answer within ``timeout_s``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                return await self._dial(min(_DIAL_S, timeout_s))
            except WireError as error:
                if error.refused or loop.time() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Send `Bye`, and end when everything sent is delivered, after 2 s at the latest."""
        self._over = True
        if self._dialling is not None:
            self._dialling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._dialling
        if self._connection is not None:
            self._connection.send(Bye())
            self._connection.close("nothing is served here any more")
        await self._gone.wait()

    # --- the connection ------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """The controller is connected."""
        self._connection = connection
        self._gone.clear()
        self._sent.clear()
        self._silence = Silence(self._silence_s, self._silent)
        self._renew()
        self._service.linked(connection.send)

    def received(self, connection: Connection, message: Any) -> None:
        """The controller has sent a message."""
        del connection
        # Only the answer to a lease shows that both directions work, when the lease was sent.
        if isinstance(message, Lease):
            if self._silence is not None and self._sent:
                self._silence.heard(self._sent.popleft())
        else:
            self._service.received(message)

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection has ended: dial again."""
        if connection is not self._connection:
            return
        self._connection = None
        self._gone.set()
        if self._silence is not None:
            self._silence.cancel()
        if self._lease is not None:
            self._lease.cancel()
        if self._over:
            return
        self._say(f"the connection to the controller at {self._address} is lost: {reason}")
        self._service.linked(None)
        self._dialling = asyncio.get_running_loop().create_task(self._dial_again())

    def _renew(self) -> None:
        if self._connection is not None:
            loop = asyncio.get_running_loop()
            self._sent.append(loop.time())
            self._connection.send(Lease())
            self._lease = loop.call_later(self._interval_s, self._renew)

    def _silent(self) -> None:
        if self._connection is not None:
            self._connection.send(Bye(back=True))
            self._connection.close(f"nothing was heard of it for {self._silence_s:.1f} s")

    # --- dialling -------------------------------------------------------------------------------

    async def _dial(self, timeout_s: float) -> None:
        await self._connect(self._address, self, longest=MAX_LINK_BYTES, timeout_s=timeout_s)

    async def _dial_again(self) -> None:
        """Try until it succeeds, or the link is closed: its ranks have ended."""
        pause_s = _SHORTEST_PAUSE_S
        last = ""
        while True:
            try:
                await self._dial(_DIAL_S)
            except WireError as error:
                if str(error) != last:
                    self._say(last := str(error))
            else:
                self._say(f"connected again to the controller at {self._address}")
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
