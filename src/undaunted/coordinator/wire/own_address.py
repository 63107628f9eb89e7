"""From where this machine speaks to another. Nothing is sent."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any

from undaunted.base.deadline import within
from undaunted.base.text import format_duration
from undaunted.coordinator.wire.address import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

_ANY_PORT = 9
# How long a name service is waited for; the resolver itself would for half a minute.
LOOK_UP_S = 10.0


def own_address(other: str, port: int = _ANY_PORT) -> str:
    """Return the address from which this machine would speak to ``other``, as a number.

    Args:
        other: name or number of a machine, which need not answer.
        port: need not be open.

    Raises:
        OSError: the name cannot be looked up, or not in time, or there is no route.
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


def look_up(host: str, port: int | None, kind: socket.SocketKind) -> list[Any]:
    """Return what `socket.getaddrinfo` does, within 10 s.

    Raises:
        TimeoutError: it has not returned in time.
        OSError: there is no such host.
    """
    found = _answer(lambda: socket.getaddrinfo(host, port, type=kind))
    if found is None:
        late = f"{host} has not been looked up within {format_duration(LOOK_UP_S)}"
        raise TimeoutError(errno.ETIMEDOUT, late)
    if isinstance(found, Exception):
        raise found
    return found


def _answer(call: Callable[[], list[Any]]) -> list[Any] | Exception | None:
    def answer() -> list[Any] | Exception | None:
        try:
            return call()
        except UnicodeError:
            return OSError(errno.EINVAL, "that cannot be the name of a machine")
        except OSError as error:
            return error

    nothing: list[Any] | Exception | None = None
    return within(LOOK_UP_S, answer, nothing)


def _route(other: str, port: int) -> tuple[str, str]:
    """Both ends of the way: a datagram socket that is connected only looks for a route."""
    family, _, _, _, there = look_up(other, port, socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(there)
        return str(sock.getsockname()[0]), str(there[0])
