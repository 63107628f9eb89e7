"""Sockets with the options that coordination needs."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.coordinator.wire.resolve import Place

_BACKLOG = 4096
_SAME_PORT_ATTEMPTS = 16
# A machine that is gone, which the leases notice earlier where they apply.
_GONE_S = 15
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
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _GONE_S // _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_S * 1000)


def listen(places: Sequence[Place]) -> list[socket.socket]:
    """Return a listening socket for each place, all with the same port.

    A family of addresses that this machine does not have is left out, unless it is the only one.

    Raises:
        OSError: the address is in use, not one of this machine, or not allowed.
    """
    if places[0].family == socket.AF_UNIX:
        return [_listen_at(place, 0) for place in places]
    any_port = places[0].sockaddr[1] == 0
    for _ in range(_SAME_PORT_ATTEMPTS if any_port else 0):
        # What is free in one family of addresses may be in use in the other.
        with contextlib.suppress(OSError):
            return _listen_everywhere(places)
    return _listen_everywhere(places)


def _listen_everywhere(places: Sequence[Place]) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    port = places[0].sockaddr[1]
    try:
        for place in places:
            try:
                listener = _listen_at(place, port)
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


def _listen_at(place: Place, port: int) -> socket.socket:
    listener = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if place.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if place.family == socket.AF_UNIX:
            listener.bind(place.sockaddr)
        else:
            listener.bind((place.sockaddr[0], port, *place.sockaddr[2:]))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
