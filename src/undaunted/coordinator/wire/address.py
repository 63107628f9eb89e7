"""Addresses as people write them and as sockets have them, and this machine's own."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base.deadline import within
from undaunted.base.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UNIX = "@"  # as `ss` and others show what the kernel has as a NUL
_UNIX = (UNIX, "/")


class Address(NamedTuple):
    """A place to listen at or to connect to.

    Attributes:
        host: name or number; "" = all interfaces of this machine; ``@NAME`` = an abstract Unix
            socket, for processes of this user on this machine; ``/PATH`` = one with a file.
        port: 0 = any that is free, or none.
    """

    host: str
    port: int

    @property
    def is_unix(self) -> bool:
        """Return whether it is a Unix socket's."""
        return self.host.startswith(_UNIX)

    def __str__(self) -> str:
        if self.is_unix:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``node0:29400``, ``10.0.0.1:29400``, ``[::1]:29400``, ``:29400``, ``@name``, ``/path``.

    Raises:
        ValueError: it is something else.
    """
    if text.startswith(_UNIX):
        return Address(text, 0)
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:29400")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is no address; give HOST:PORT, as in node0:29400")
    return Address(host, int(port))


def from_socket(sockaddr: Any) -> Address:
    """Return the address of an IPv4, IPv6 or Unix socket; of the last, who connects has no name."""
    if not isinstance(sockaddr, tuple):
        name = sockaddr if isinstance(sockaddr, str) else sockaddr.decode(errors="replace")
        return Address(name if name.startswith("/") else UNIX + name.removeprefix("\0"), 0)
    return Address(str(sockaddr[0]), int(sockaddr[1]))


def is_loopback(host: str) -> bool:
    """Return whether a numeric address, or that of a Unix socket, never leaves this machine."""
    if host.startswith(_UNIX):
        return True
    address = _number(host)
    if address is None:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


_LABEL = re.compile(r"[\w-]{1,63}", re.ASCII)
_ANY_PORT = 9
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)
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


def first_own_address(endpoints: Sequence[str]) -> str:
    """Return the address from which this machine would speak to the first of these with a name.

    "" = no name of them is known yet, or there is no route yet: a name service may still have the
    address of an earlier machine, and a network may come up after the launcher.

    Raises:
        OSError: no address can be used for another reason.
    """
    for endpoint in endpoints:
        host, port = parse_address(endpoint)
        try:
            return own_address(host, port)
        except (socket.gaierror, TimeoutError):
            continue
        except OSError as error:
            if error.errno not in _NO_ROUTE:
                raise
    return ""


def is_here(host: str) -> bool | None:
    """Return whether a host is this machine; None = its name is not known yet.

    No name service is asked about a number. A name may lack its last parts, as names of pods do.
    """
    host = host.strip("[]")
    if host in {"localhost", "127.0.0.1", "::1", socket.gethostname()}:
        return True
    unknown = False
    try:
        found = look_up(host, None, socket.SOCK_STREAM)
    except OSError:
        found, unknown = [], True
    if any(_is_own(family, address[0]) for family, _, _, _, address in found):
        return True
    if _number(host) is None:
        own = within(LOOK_UP_S, socket.getfqdn, "")
        if own == host or own.startswith(f"{host}."):
            return True
    return None if unknown else False


def may_be_host(host: str) -> bool:
    """Return whether this is a number, or could be the name of a machine, known or not."""
    if _number(host) is not None:
        return True
    try:
        labels = host.encode("idna").decode().removesuffix(".").split(".")
    except UnicodeError:
        return False
    return all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a numeric address without the interface behind it, None if it is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_own(family: int, address: Any) -> bool:
    """Whether an address can be bound to, which only one's own can."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def own_host(other: str) -> str:
    """Return an address of this machine for all that can reach ``other``.

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
