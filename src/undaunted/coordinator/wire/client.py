"""Connecting to a server."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.deadline import wait_for
from undaunted.base.text import format_duration
from undaunted.coordinator.protocol import MAX_MESSAGE_BYTES, Message
from undaunted.coordinator.wire.address import Address, from_socket, parse_address
from undaunted.coordinator.wire.connection import Connection, WireError, describe
from undaunted.coordinator.wire.handshake import NONCE_BYTES, ClientHandshake, Terms
from undaunted.coordinator.wire.sockets import check_own, resolve, tune

if TYPE_CHECKING:
    from undaunted.coordinator.wire.connection import End, Handler
    from undaunted.coordinator.wire.sockets import SocketAddress

CONNECT_S = 5.0


async def connect(
    address: str,
    handler: Handler,
    terms: Terms,
    *,
    tls: ssl.SSLContext | None = None,
    messages: Any = Message,
    longest: int = MAX_MESSAGE_BYTES,
    timeout_s: float = CONNECT_S,
) -> Connection:
    """Connect, prove each other's knowledge of the token, return the connection.

    `Handler.opened` has been called then, and what the server said at once has been received.

    Args:
        address: ``HOST:PORT``; ``@NAME`` of an abstract Unix socket of this user, or the path of
            one that has a file.
        handler: gets what happens on the connection.
        terms: job, version, token and name of this node.
        tls: see `undaunted.coordinator.wire.credentials.client_context`; None = none.
        messages: type of the messages that are received: a union of tagged structs.
        longest: how many bytes a message may have, either way.
        timeout_s: longest duration of all of it, name lookup included, seconds.

    Raises:
        ValueError: ``address`` is none.
        WireError: there is no connection; says why.
    """
    parsed = parse_address(address)
    if not parsed.is_unix and not (parsed.host and parsed.port):
        raise ValueError(f"{address!r}: to connect, a host and a port are needed")
    decode = msgspec.msgpack.Decoder(messages).decode
    attempt = _Attempt(parsed, handler, terms, tls, decode, longest)
    try:
        return await wait_for(attempt.connect(timeout_s), timeout_s)
    except asyncio.CancelledError:
        attempt.give_up()
        raise
    except TimeoutError:
        late = f"no answer within {format_duration(timeout_s)}{attempt.perhaps_tls}"
        raise WireError(f"{parsed}: {late}", number=errno.ETIMEDOUT) from None
    except OSError as error:
        line = f"{parsed}: {describe(error)}"
        raise WireError(line, refused=_is_misfit(error), number=error.errno or 0) from None


class _Attempt:
    """One try to get a connection; owns it until it ends."""

    def __init__(
        self,
        address: Address,
        handler: Handler,
        terms: Terms,
        tls: ssl.SSLContext | None,
        decode: Any,
        longest: int,
    ) -> None:
        self._address = address
        self._handler = handler
        self._terms = terms
        self._tls = tls
        self._decode = decode
        self._longest = longest
        self._handshake: ClientHandshake | None = None
        self._connection: Connection | None = None
        self._result: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def connect(self, timeout_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        addresses = await resolve(self._address, timeout_s)
        sock, address = await _first_that_answers(addresses, deadline)
        return await self._shake(sock, from_socket(address.sockaddr), deadline - loop.time())

    async def _shake(self, sock: socket.socket, peer: Address, timeout_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        self._handshake = handshake = ClientHandshake(self._terms, os.urandom(NONCE_BYTES))
        connection = Connection(sock, peer, handshake, self._handler, self, self._decode, timeout_s)
        connection.longest = self._longest
        self._connection = connection
        with_tls = self._tls is not None
        try:
            await connection.adopted(
                loop.create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=self._tls,
                    server_hostname=self._address.host if with_tls else None,
                    ssl_handshake_timeout=timeout_s if with_tls else None,
                )
            )
            return await self._result
        except BaseException:
            self.give_up()
            raise

    @property
    def perhaps_tls(self) -> str:
        """A hint where a connected server says nothing: a server with TLS waits for it."""
        silent = self._tls is None and self._handshake is not None and not self._handshake.heard
        return "; it may use TLS, which is not used here, or be no undaunted" if silent else ""

    def give_up(self) -> None:
        """Nobody wants the connection any more."""
        self._result.cancel()
        if self._connection is not None:
            self._connection.drop("given up")

    def established(self, connection: Connection) -> None:
        if not self._result.done():
            self._result.set_result(connection)

    def holds(self, connection: Connection, size: int) -> None:
        """Do nothing: messages of the one connection have a longest size."""

    def ended(self, _connection: Connection, end: End) -> None:
        if not self._result.done():
            reason = end.reason + self.perhaps_tls
            if self._tls is not None and not end.refused:
                reason += "; it may refuse this node's certificate: its output says so"
            error = WireError(f"{self._address}: {reason}", refused=end.refused)
            self._result.set_exception(error)
            self._result.exception()  # has been seen, should nobody wait any more


def _is_misfit(error: OSError) -> bool:
    """Whether TLS was refused by one of the two, which trying again does not change."""
    ended = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, ended)


async def _first_that_answers(
    addresses: list[SocketAddress], deadline: float
) -> tuple[socket.socket, SocketAddress]:
    """Connect to the first address that can be; each gets a fair share of the time.

    Raises:
        ConnectionRefusedError: nobody listens at any of them.
        OSError: why one of them cannot be reached.
    """
    loop = asyncio.get_running_loop()
    refused: OSError | None = None
    problem: OSError | None = None
    for index, address in enumerate(addresses):
        share_s = (deadline - loop.time()) / (len(addresses) - index)
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            tune(sock)
            await wait_for(loop.sock_connect(sock, address.sockaddr), share_s)
            if address.family == socket.AF_UNIX and address.sockaddr.startswith("\0"):
                check_own(sock)
            # A socket may be connected with itself by chance if nobody listens.
            if sock.getsockname() != sock.getpeername():
                return sock, address
            refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except ConnectionRefusedError as error:
            refused = error
        except OSError as error:
            problem = error
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise problem or refused or OSError("no address")
