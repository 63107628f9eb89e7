"""Addresses as people write them, and as sockets have them. Pure."""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple


class Address(NamedTuple):
    """Where to listen or connect to.

    Attributes:
        host: name or number; "" = all interfaces of this machine.
        port: 0 = any that is free.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``node0:29400``, ``10.0.0.1:29400``, ``[::1]:29400`` or ``:29400``.

    Raises:
        ValueError: it is something else.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:29400")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is no address; give HOST:PORT, as in node0:29400")
    return Address(host, int(port))


def from_socket(sockaddr: tuple[Any, ...]) -> Address:
    """Return the address of an IPv4 or IPv6 socket."""
    return Address(str(sockaddr[0]), int(sockaddr[1]))


def is_loopback(host: str) -> bool:
    """Whether a numeric address never leaves this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
