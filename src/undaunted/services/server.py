"""An application over HTTP by uvicorn, of which clients that say nothing keep nobody out.

uvicorn waits for a request, for its body, and for a client that reads, without an end. Here all
these are bounded together, and what waits for TLS with them: `Waiting`. Of uvicorn nothing is used
but what it offers: a `Connection` stands around its protocol, `Turns` in front of the application.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from undaunted.base.accepting import Acceptor, Waiting

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Sequence
    from types import FrameType

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

WAIT_S = 10.0
MOST_WAITING = 256
MOST_CONNECTIONS = 512
_BACKLOG = 512
_STOP_S = 5
_CONNECTION = "undaunted.connection"  # in the state of a scope
_HAS_BODY = frozenset((b"content-length", b"transfer-encoding"))


class Connection(asyncio.Protocol):
    """One connection; it waits for its client unless a whole request is being answered."""

    def __init__(self, server: uvicorn.Server, waiting: Waiting) -> None:
        state = {**server.lifespan.state, _CONNECTION: self}
        self._inner: asyncio.Protocol = cast("Any", server.config.http_protocol_class)(
            config=server.config, server_state=server.server_state, app_state=state
        )
        self._waiting = waiting
        self._transport: asyncio.Transport | None = None
        self._is_asked = False
        self._is_full = False
        self._is_idle = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request; the time for TLS is over."""
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)
        self._waiting.remove(self)
        self._turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._waiting.remove(self)
        self._transport = None
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request, or of several; it waits anew for the first one."""
        if self._is_idle:
            self.begins()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Take the end of all requests."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Wait for a client that does not read."""
        self._is_full = True
        self._inner.pause_writing()
        self._turn()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        self._inner.resume_writing()
        self._turn()

    def begins(self) -> None:
        """Wait anew, for what is missing of a request that has begun."""
        self._is_idle = False
        self._waiting.remove(self)
        self._turn()

    def asked(self, whole: bool) -> None:
        """Note whether a whole request is being answered."""
        self._is_asked, self._is_idle = whole, not whole
        self._turn()

    def _turn(self) -> None:
        """Find out who is to do something next."""
        if self._is_asked and not self._is_full:
            self._waiting.remove(self)
        elif self._transport is not None:
            self._waiting.add(self, self._transport.abort)


class Turns:
    """Tells a connection of each request: when it is there with its body, when it was answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""
        connection = scope.get("state", {}).pop(_CONNECTION, None)
        if scope["type"] != "http" or connection is None:
            await self._app(scope, receive, send)
            return
        connection.begins()
        if not any(name in _HAS_BODY for name, _ in scope["headers"]):
            connection.asked(True)

        async def receive_part() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                connection.asked(True)
            return message

        try:
            await self._app(scope, receive_part, send)
        finally:
            connection.asked(False)


class Clients:
    """Accepts clients, and does away with those that stall. Made, and closed, on one loop."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[Waiting], asyncio.Protocol],
        say: Callable[[str], None],
        *,
        tls: ssl.SSLContext | None = None,
        most: int = MOST_WAITING,
        limit_s: float = WAIT_S,
    ) -> None:
        """Begin to accept.

        Args:
            listener: bound and listening; closed in the end.
            protocol: makes one of a connection.
            say: shows a line.
            tls: of the server; None = plain HTTP.
            most: connections that may wait for their clients.
            limit_s: how long each of them may, in seconds.
        """
        self._protocol = protocol
        self._say = say
        self._tls = tls
        self._most = most
        self._said: set[str] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._waiting = Waiting(most, limit_s, self._crowded)
        self._acceptor = Acceptor(listener, self._take, self._short)

    def close(self) -> None:
        """Accept no more; connections stay."""
        self._acceptor.close()
        for task in self._beginning:
            task.cancel()

    def _take(self, connection: socket.socket) -> None:
        protocol = self._protocol(self._waiting)
        task = asyncio.ensure_future(self._begin(protocol, connection))
        self._beginning.add(task)
        self._waiting.add(protocol, task.cancel)
        task.add_done_callback(lambda _: self._begun(task, protocol, connection))

    async def _begin(self, protocol: asyncio.Protocol, connection: socket.socket) -> None:
        """Have a client show that it means TLS, if that is asked for."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)

    def _begun(
        self, task: asyncio.Task[None], protocol: asyncio.Protocol, connection: socket.socket
    ) -> None:
        self._beginning.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._waiting.remove(protocol)
            connection.close()

    def _crowded(self) -> None:
        self._say_once(
            f"{self._most} connections wait for clients that ask nothing: each that comes takes "
            "the place of the oldest of these"
        )

    def _short(self) -> None:
        """There is no descriptor left for who comes."""
        self._waiting.drop_oldest()
        self._say_once("there are too few descriptors for all clients: raise the limit (ulimit -n)")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)


class Server(uvicorn.Server):
    """Serves an application at a socket until SIGTERM or SIGINT."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        say: Callable[[str], None],
        tls: ssl.SSLContext | None = None,
        first: Sequence[str] = (),
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        """Say what is to be served; `run` does.

        Args:
            app: with a lifespan.
            listener: bound; closed in the end.
            say: shows a line.
            tls: of the server; None = plain HTTP.
            first: lines to be shown once it serves, and a signal ends it in order.
            let_go: called at the end, to have requests that wait answered.
        """
        self._room = _descriptors()
        super().__init__(configure(app, min(MOST_CONNECTIONS, self._room // 2)))
        self._listener = listener
        self._say = say
        self._tls = tls
        self._first = first
        self._let_go = let_go
        self._clients: Clients | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin the application, and accept."""
        await super().startup(sockets=sockets or [])
        self._listener.listen(_BACKLOG)
        self._clients = Clients(
            self._listener,
            self._protocol,
            self._say,
            tls=self._tls,
            most=min(MOST_WAITING, self._room // 4),
        )
        for line in self._first:
            self._say(line)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the connections, and the application."""
        if self._clients is not None:
            self._clients.close()
        self._let_go()
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Note that it is to end: which is no failure, so that the signal is not raised again."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def _protocol(self, waiting: Waiting) -> Connection:
        return Connection(self, waiting)


def configure(app: ASGIApp, most: int) -> uvicorn.Config:
    """Return how uvicorn serves an application.

    Args:
        app: the application.
        most: connections, before more are answered with 503.
    """
    return uvicorn.Config(
        Turns(app),
        loop="asyncio",
        http="h11",
        ws="none",
        interface="asgi3",
        lifespan="on",
        log_config=None,
        log_level="error",  # a line for each client that sends nonsense would have no end
        access_log=False,
        proxy_headers=False,  # who asks is who has connected
        server_header=False,
        limit_concurrency=most,
        timeout_keep_alive=int(WAIT_S),
        timeout_graceful_shutdown=_STOP_S,
    )


def _descriptors() -> int:
    """Allow as many descriptors as may be; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # some containers
        hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
