"""Addresses as people write them, and as sockets have them. Pure."""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple

UNIX = "@"  # as `ss` and others show what the kernel has as a NUL


class Address(NamedTuple):
    """Where to listen or connect to.

    Attributes:
        host: name or number; "" = all interfaces of this machine; ``@NAME`` = an abstract Unix
            socket, for processes of this user on this machine.
        port: 0 = any that is free, or none.
    """

    host: str
    port: int

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket's."""
        return self.host.startswith(UNIX)

    def __str__(self) -> str:
        if self.is_unix:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``node0:29400``, ``10.0.0.1:29400``, ``[::1]:29400``, ``:29400`` or ``@name``.

    Raises:
        ValueError: it is something else.
    """
    if text.startswith(UNIX):
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
        return Address(UNIX + name.removeprefix("\0"), 0)
    return Address(str(sockaddr[0]), int(sockaddr[1]))


def is_loopback(host: str) -> bool:
    """Whether a numeric address, or that of a Unix socket, never leaves this machine."""
    if host.startswith(UNIX):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
