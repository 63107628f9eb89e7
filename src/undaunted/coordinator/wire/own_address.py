"""From where this machine speaks to another. Nothing is sent."""

from __future__ import annotations

import socket

from undaunted.coordinator.wire.address import is_loopback

_ANY_PORT = 9


def own_address(other: str, port: int = _ANY_PORT) -> str:
    """Return the address from which this machine would speak to ``other``, as a number.

    Args:
        other: name or number of a machine, which need not answer.
        port: need not be open.

    Raises:
        OSError: the name cannot be looked up, or there is no route.
    """
    here, _ = _route(other, port)
    return here


def own_host(other: str) -> str:
    """Return under what those who can reach ``other`` reach this machine, too.

    That is ``other`` if it leads to this machine itself, else the address from which this machine
    would speak to it.

    Raises:
        OSError: see `own_address`.
    """
    here, there = _route(other, _ANY_PORT)
    return other if here == there or is_loopback(here) else here


def _route(other: str, port: int) -> tuple[str, str]:
    """Both ends of the way: a datagram socket that is connected only looks for a route."""
    family, _, _, _, there = socket.getaddrinfo(other, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(there)
        return str(sock.getsockname()[0]), str(there[0])
