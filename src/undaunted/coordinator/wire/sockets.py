"""Sockets: names looked up within a deadline, listening, options, and who is at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.coordinator.wire.address import UNIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.coordinator.wire.address import Address

_BACKLOG = 4096
_SAME_PORT_ATTEMPTS = 16
# A machine that is gone, which the leases notice earlier where they apply.
_GONE_S = 15
# Of Linux; Python has no names for them.
_TCP_THIN_LINEAR_TIMEOUTS = 16
_TCP_RTO_MAX_MS = 44
_SENT_AGAIN_MS = 1000  # the least that it takes
_KEEPALIVE_IDLE_S = 5
_KEEPALIVE_INTERVAL_S = 5
# A family of addresses that this machine does not have.
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def tune(sock: socket.socket) -> None:
    """Make a connected socket non-blocking, prompt, and aware of a peer that is gone."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Where many packets are lost, what was sent is sent again soon: a lease does not last as long
    # as five pauses that double.
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)
    with contextlib.suppress(OSError):  # before Linux 6.15
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _SENT_AGAIN_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _GONE_S // _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_S * 1000)


def listen(addresses: Sequence[SocketAddress]) -> list[socket.socket]:
    """Return a listening socket for each address, all with the same port.

    A family of addresses that this machine does not have is left out, unless it is the only one.

    Raises:
        OSError: the address is in use, not one of this machine, or not allowed.
    """
    if addresses[0].family == socket.AF_UNIX:
        return [_listen_at(address, 0) for address in addresses]
    any_port = addresses[0].sockaddr[1] == 0
    for _ in range(_SAME_PORT_ATTEMPTS if any_port else 0):
        # A port that is free in one family of addresses may be in use in the other.
        with contextlib.suppress(OSError):
            return _listen_everywhere(addresses)
    return _listen_everywhere(addresses)


def _listen_everywhere(addresses: Sequence[SocketAddress]) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    port = addresses[0].sockaddr[1]
    try:
        for address in addresses:
            try:
                listener = _listen_at(address, port)
            except OSError as error:
                if error.errno not in _NO_FAMILY:
                    raise
                missing = error
                continue
            listeners.append(listener)
            port = listener.getsockname()[1]
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    if not listeners and missing is not None:
        raise missing
    return listeners


def _listen_at(address: SocketAddress, port: int) -> socket.socket:
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if address.family == socket.AF_UNIX:
            listener.bind(address.sockaddr)
        else:
            listener.bind((address.sockaddr[0], port, *address.sockaddr[2:]))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


# Threads that wait for a name server. One that never answers must not gather more and more.
_threads = threading.BoundedSemaphore(16)


class SocketAddress(NamedTuple):
    """A numeric address.

    Attributes:
        family: ``AF_INET``, ``AF_INET6`` or ``AF_UNIX``.
        sockaddr: as `socket` takes it.
    """

    family: socket.AddressFamily
    sockaddr: Any


async def resolve(
    address: Address, timeout_s: float, *, passive: bool = False
) -> list[SocketAddress]:
    """Return the numeric addresses of ``address``, at least one, the preferred one first.

    A name is looked up in a daemon thread, which is left behind when time runs out.

    Args:
        address: name or number.
        timeout_s: longest wait, seconds.
        passive: to listen there; an empty host means all interfaces.

    Raises:
        OSError: there is none, or it was not found in time.
    """
    if address.is_unix:
        path = address.host.startswith("/")
        name = address.host if path else "\0" + address.host.removeprefix(UNIX)
        return [SocketAddress(socket.AF_UNIX, name)]
    with contextlib.suppress(OSError, UnicodeError):
        return _look_up(address, passive=passive, numeric=True)
    if not _threads.acquire(blocking=False):
        raise OSError(f"the name {address.host} is not looked up: too many others still are")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[SocketAddress]] = loop.create_future()

    def settle(addresses: list[SocketAddress] | Exception) -> None:
        if answer.done():
            return
        if isinstance(addresses, Exception):
            answer.set_exception(addresses)
        else:
            answer.set_result(addresses)

    def run() -> None:
        try:
            addresses: list[SocketAddress] | Exception = _look_up(address, passive=passive)
        except OSError as error:
            addresses = OSError(f"the name {address.host} cannot be looked up: {error.strerror}")
        except UnicodeError:
            addresses = OSError(f"{address.host!r} cannot be the name of a machine")
        finally:
            _threads.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits any more
            loop.call_soon_threadsafe(settle, addresses)

    threading.Thread(target=run, name="undaunted-resolve", daemon=True).start()
    try:
        await asyncio.wait({answer}, timeout=timeout_s)
        if answer.done():
            return answer.result()
    finally:
        answer.cancel()
    raise OSError(f"the name {address.host} was not looked up in time")


def _look_up(address: Address, *, passive: bool, numeric: bool = False) -> list[SocketAddress]:
    flags = (socket.AI_PASSIVE if passive else 0) | (socket.AI_NUMERICHOST if numeric else 0)
    found = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=flags
    )
    return list(
        dict.fromkeys(SocketAddress(family, sockaddr) for family, _, _, _, sockaddr in found)
    )


_UCRED = struct.Struct("3i")  # pid, user, group


class Peer(NamedTuple):
    """A process: the one that has connected, or listens; of a socket pair, the one that made it.

    Attributes:
        pid: at that moment, in our namespace.
        user: its effective user id.
    """

    pid: int
    user: int


def peer(sock: socket.socket) -> Peer:
    """Return who is at the other end of a connected Unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, user, _ = _UCRED.unpack(credentials)
    return Peer(pid, user)


def check_own(sock: socket.socket) -> None:
    """Anybody may listen under a name of the abstract namespace.

    Raises:
        PermissionError: another user does.
    """
    user = peer(sock).user
    if user != os.geteuid():
        raise PermissionError(f"user {user} listens there")
