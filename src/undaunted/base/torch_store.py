"""Serving torch's TCPStore, connecting to one, and finding the connections of its clients.

A client of a TCPStore has one connection, and no function that ends a wait for an answer: only the
end of the connection does. Torch looks up names for every connection. Nothing here imports torch
before it is used.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Any

from undaunted.base import name_server, open_sockets

if TYPE_CHECKING:
    from datetime import timedelta

    from undaunted.base.open_sockets import Descriptor

LOOPBACK = "127.0.0.1"
_ALL = ("::", "0.0.0.0")  # noqa: S104 - compared with
_BACKLOG = 4096
_FD = re.compile(r"SocketImpl\(fd=(\d+),")


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen at an address of this machine; at all its addresses if ``host`` is a name.

    Args:
        host: an address of this machine as a number, or a name; "" = all addresses.
        port: 0 = any that is free.

    Raises:
        OSError: the port is taken, or this machine has no such address.
    """
    try:
        version = ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        host, version = "", 6 if socket.has_dualstack_ipv6() else 4
    sock = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:  # old connections at the port do not matter
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if version == 6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def serve(listening: socket.socket, timeout: timedelta) -> Any:
    """Return a store that this process serves at a socket, which torch owns from now on.

    Args:
        listening: the server ends with the store.
        timeout: of the store's operations.
    """
    import torch.distributed as dist

    host, port, *_ = listening.getsockname()
    with name_server.asked_again_soon():
        return dist.TCPStore(
            LOOPBACK if host in _ALL else host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listening.detach(),
        )


def connect(host: str, port: int, timeout: timedelta) -> Any:
    """Return a store that is connected to a server; torch tries until ``timeout`` is over.

    Raises:
        RuntimeError: there is no server, or it does not answer; torch says why.
    """
    import torch.distributed as dist

    with name_server.asked_again_soon():
        return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)


def connections_to(port: int) -> set[Descriptor]:
    """Return the connections of this process to that port of any host."""
    peers = ((one, open_sockets.peer(one)) for one in open_sockets.all_sockets())
    return {one for one, at in peers if at is not None and at[1] == port}


def connection_of(client: Any, among: set[Descriptor]) -> Descriptor | None:
    """Return the connection of a client to its server; None = it is not known.

    Args:
        client: a TCPStore.
        among: connections to its port that may be it.
    """
    if len(among) == 1:
        return next(iter(among))
    # The client's repr has its descriptor, but looks up names, which may take seconds.
    match = _FD.search(repr(client))
    return open_sockets.describe(int(match[1])) if match else None
