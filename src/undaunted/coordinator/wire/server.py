"""A server of connections: accepts, has them prove themselves, hands them over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.deadline import wait_for
from undaunted.base.text import format_duration
from undaunted.coordinator.protocol import MAX_MESSAGE_BYTES, Message
from undaunted.coordinator.wire.address import (
    UNIX,
    Address,
    from_socket,
    is_loopback,
    parse_address,
)
from undaunted.coordinator.wire.connection import Connection, WireError, describe
from undaunted.coordinator.wire.handshake import NONCE_BYTES, ServerHandshake, Terms
from undaunted.coordinator.wire.sockets import listen, resolve, tune
from undaunted.coordinator.wire.sockets import peer as other_end

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import End, Handler

HANDSHAKE_S = 5.0
# So many bytes of incomplete messages may all connections of a server hold together.
MAX_HELD_BYTES = 128 * 1024 * 1024

_RESOLVE_S = 10.0
_CLOSE_S = 5.0
_ACCEPTS_IN_A_ROW = 64  # then it is the turn of others on the loop
_PAUSE_S = 0.5  # before accepting is tried again
_HALF_OPEN = 64  # beside two for each node
_YOUNG_S = 0.1  # how long a half-open connection is safe from others that come
_LOOPBACK_ONLY = (
    "without a token only this machine may be listened at (127.0.0.1); give all nodes the same "
    "UNDAUNTED_TOKEN or --coordinator-token-file"
)


class Server:
    """Listens at one address until closed. Used on one loop.

    Attributes:
        nodes: how many nodes the job may have; limits how many connections may be half-open.
        longest: how many bytes a message may have, either way.
    """

    def __init__(
        self,
        address: str,
        handler: Handler,
        terms: Terms,
        *,
        tls: ssl.SSLContext | None = None,
        say: Callable[[str], None] | None = None,
        messages: Any = Message,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """Prepare; nothing listens before `start`.

        Args:
            address: ``HOST:PORT``; port 0 = any that is free; no host = all interfaces. ``@NAME``
                = an abstract Unix socket; of one that has a file, see `start`.
            handler: gets the connections.
            terms: job, version and token. Without a token only loopback is listened at.
            tls: see `undaunted.coordinator.wire.credentials.server_context`; None = none.
            say: called on the loop with lines about peers that did what they must not do: five
                a minute, the others are counted. None = nobody reads them.
            messages: type of the messages that are received: a union of tagged structs.
            handshake_s: longest duration of a handshake, seconds.

        Raises:
            ValueError: ``address`` is none.
        """
        self.nodes = 1
        self.longest = MAX_MESSAGE_BYTES
        self._address = parse_address(address)
        self._handler = handler
        self._terms = terms
        self._tls = tls
        self._say = say
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._handshake_s = handshake_s
        self._complaints = Complaints()
        self._flush: asyncio.TimerHandle | None = None
        self._listeners: list[socket.socket] = []
        self._resumptions: dict[socket.socket, asyncio.TimerHandle] = {}
        self._connections: set[Connection] = set()
        self._half_open: dict[Connection, float] = {}  # since when; the oldest first
        self._adoptions: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()
        self._held: dict[Connection, int] = {}  # bytes of long messages that are not complete
        self._held_bytes = 0

    async def start(self, listening: socket.socket | None = None) -> None:
        """Listen.

        Args:
            listening: a socket that does so already, and is closed with this server.

        Raises:
            WireError: that is not possible, or not allowed without a token.
        """
        if listening is not None:
            self._listeners = [listening]
            self._resume(listening)
            return
        try:
            addresses = await resolve(self._address, _RESOLVE_S, passive=True)
            here = all(is_loopback(from_socket(address.sockaddr).host) for address in addresses)
            if not self._terms.token and not here:
                raise WireError(f"cannot listen at {self._address}: {_LOOPBACK_ONLY}")
            self._listeners = listen(addresses)
        except OSError as error:
            line = f"cannot listen at {self._address}: {describe(error)}"
            raise WireError(line, number=error.errno or 0) from None
        for listener in self._listeners:
            self._resume(listener)

    @property
    def addresses(self) -> list[Address]:
        """Numeric addresses that are listened at, with the port that was found."""
        return [from_socket(listener.getsockname()) for listener in self._listeners]

    @property
    def port(self) -> int:
        """The port, 0 when nothing listens."""
        return self.addresses[0].port if self._listeners else 0

    async def close(self, reason: str) -> None:
        """Stop to listen and close all connections; wait until they are gone, 5 s at most."""
        loop = asyncio.get_running_loop()
        for timer in self._resumptions.values():
            timer.cancel()
        self._resumptions.clear()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        self._listeners = []
        for connection in list(self._connections):
            connection.close(reason)
        with contextlib.suppress(TimeoutError):
            while self._connections:
                self._gone.clear()
                await wait_for(self._gone.wait(), _CLOSE_S)
        if self._flush is not None:
            self._flush.cancel()
            self._tell_rest()

    # --- accepting ------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_IN_A_ROW):
            wait_s = self._wait_for_room_s()
            if wait_s > 0:
                self._pause(listener, wait_s)
                return
            try:
                sock, sockaddr = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._complain(f"cannot accept connections at {self._address}: {describe(error)}")
                self._pause(listener, _PAUSE_S)
                self._drop_oldest()
                return
            self._welcome(sock, _who(sock, from_socket(sockaddr)))

    def _welcome(self, sock: socket.socket, peer: Address) -> None:
        try:
            tune(sock)
        except OSError:
            sock.close()  # it is gone already
            return
        stranger = self._stranger(sock, peer)
        if stranger:
            sock.close()
            self._complain(f"connection from {peer} closed: {stranger}")
            return
        handshake = ServerHandshake(self._terms, os.urandom(NONCE_BYTES))
        connection = Connection(
            sock, peer, handshake, self._handler, self, self._decode, self._handshake_s
        )
        connection.longest = self.longest
        self._connections.add(connection)
        loop = asyncio.get_running_loop()
        if len(self._half_open) >= self._half_open_limit():
            self._drop_oldest()
        self._half_open[connection] = loop.time()
        task = loop.create_task(self._adopt(sock, connection))
        self._adoptions.add(task)
        task.add_done_callback(self._adoptions.discard)

    def _stranger(self, sock: socket.socket, peer: Address) -> str:
        """Return why a peer may not even try to prove itself, "" = it may."""
        if peer.is_unix:
            user = other_end(sock).user
            return "" if user in (0, os.geteuid()) else f"user {user} may not connect"
        return "" if self._terms.token or is_loopback(peer.host) else _LOOPBACK_ONLY

    async def _adopt(self, sock: socket.socket, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        limit = self._handshake_s if self._tls is not None else None
        try:
            await connection.adopted(
                loop.connect_accepted_socket(
                    lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=limit
                )
            )
        except OSError as error:
            connection.failed(error, tls=self._tls is not None)

    def _half_open_limit(self) -> int:
        """Half-open connections must leave descriptors for the others."""
        wanted = _HALF_OPEN + 2 * self.nodes
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 4))

    def _wait_for_room_s(self) -> float:
        """Return how long no half-open connection may be closed for the sake of another one.

        In a crowd of good clients each needs a moment: new ones wait in the kernel until then.
        """
        if len(self._half_open) < self._half_open_limit():
            return 0.0
        since = next(iter(self._half_open.values()))
        return since + _YOUNG_S - asyncio.get_running_loop().time()

    def _drop_oldest(self) -> None:
        if self._half_open:
            oldest = next(iter(self._half_open))
            count = len(self._half_open)
            del self._half_open[oldest]
            oldest.drop(f"it says nothing, and {count} connections are in their handshakes")

    def _pause(self, listener: socket.socket, wait_s: float) -> None:
        """Accept nothing until a connection makes room, ``wait_s`` at most."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._resumptions[listener] = loop.call_later(wait_s, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        timer = self._resumptions.pop(listener, None)
        if timer is not None:
            timer.cancel()
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _resume_all(self) -> None:
        for listener in list(self._resumptions):
            self._resume(listener)

    # --- what connections tell ------------------------------------------------------------------

    def established(self, connection: Connection) -> None:
        """Note that a connection is not half-open any more."""
        self._half_open.pop(connection, None)
        self._resume_all()

    def holds(self, connection: Connection, size: int) -> None:
        """Bound what all of them hold together: who has the token may be at fault as well."""
        self._held_bytes += size - self._held.pop(connection, 0)
        if size:
            self._held[connection] = size
        if self._held_bytes > MAX_HELD_BYTES:
            many = f"{len(self._held)} connections have sent {self._held_bytes} bytes"
            connection.drop(f"{many} of messages that are not complete")

    def ended(self, connection: Connection, end: End) -> None:
        """Forget it."""
        self.holds(connection, 0)
        self._half_open.pop(connection, None)
        self._connections.discard(connection)
        self._resume_all()
        if not self._connections:
            self._gone.set()
        if end.fault:
            who = f"{connection.peer} ({connection.node})" if connection.node else connection.peer
            self._complain(f"connection from {who} closed: {end.reason}")

    def _complain(self, line: str) -> None:
        if self._say is None:
            return
        loop = asyncio.get_running_loop()
        for text in self._complaints.note(line, loop.time()):
            self._say(text)
        due_s = self._complaints.due_s()
        if due_s is not None and self._flush is None:
            self._flush = loop.call_at(due_s, self._tell_rest)

    def _tell_rest(self) -> None:
        self._flush = None
        for text in self._complaints.flush(asyncio.get_running_loop().time()):
            if self._say is not None:
                self._say(text)


def _who(sock: socket.socket, peer: Address) -> Address:
    """Return the address of who has connected; over a Unix socket it has none, but a pid."""
    return Address(f"{UNIX}pid {other_end(sock).pid}", 0) if peer.is_unix else peer


class Complaints:
    """Lets some lines through in each window of time and counts the others.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self, lines: int = 5, window_s: float = 60.0) -> None:
        """Nothing has been said.

        Args:
            lines: how many are let through in a window, which begins with the first of them.
            window_s: its length, seconds.
        """
        self._lines = lines
        self._window_s = window_s
        self._end = float("-inf")  # of the window
        self._said = 0
        self._counted = 0
        self._last = ""

    def note(self, text: str, now_s: float) -> list[str]:
        """Take in a complaint; return the lines to say now."""
        due = self.flush(now_s) if now_s >= self._end else []
        if not due and now_s >= self._end:
            self._end = now_s + self._window_s
            self._said = 0
        if self._said < self._lines:
            self._said += 1
            return [*due, text]
        self._counted += 1
        self._last = text
        return due

    def due_s(self) -> float | None:
        """Return when `flush` has something to say, None = no complaint has been held back."""
        return self._end if self._counted else None

    def flush(self, now_s: float) -> list[str]:
        """Return the line about what was held back, if there is any. It begins a new window."""
        if not self._counted:
            return []
        line = (
            f"{self._counted} more of these within {format_duration(self._window_s)}, "
            f"the last: {self._last}"
        )
        self._end = now_s + self._window_s
        self._said = 1
        self._counted = 0
        return [line]
