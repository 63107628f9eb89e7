"""Where other ranks reach this one."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from undaunted.coordinator.wire import own_address
from undaunted.coordinator.wire.address import is_loopback
from undaunted.inprocess.exception import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BACKLOG = 4096
_LOOPBACK = "127.0.0.1"


def own_host(environ: Mapping[str, str]) -> str:
    """Return under which name or address other ranks reach this machine; "" = there are none.

    That is the address from which this machine would speak to ``MASTER_ADDR``.
    """
    if environ.get("WORLD_SIZE", "1") == "1":
        return ""
    master = environ.get("MASTER_ADDR", "")
    if environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"] or master in ("", "localhost"):
        return _LOOPBACK
    try:
        return own_address.own_host(master)
    except OSError as error:
        raise InternalError(f"MASTER_ADDR={master!r} cannot be looked up: {error}") from error


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen at a port, 0 = any that is free, for others who know this machine as ``host``.

    Raises:
        OSError: the port is taken.
    """
    if is_loopback(host):
        return _listen(socket.AF_INET, _LOOPBACK, port)
    return _listen(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, "", port)


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port:  # connections of who listened there before do not matter
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
