"""Ending a wait in a TCPStore without an end to the store."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.communication import sockets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_log = logging.getLogger("nvrx")

# A server is slow to answer while it looks up names.
_CONNECT_TIMEOUT = timedelta(seconds=10)
_ACCEPT_TIMEOUT_S = 1.0
_FD = re.compile(r"SocketImpl\(fd=(\d+),")


def tcp_client(store: Any) -> Any:
    """Return the TCPStore that a store stands for, prefixed or not; None = it is another kind."""
    client = getattr(store, "_underlying_non_prefix_store", store)
    return client if type(client).__name__ == "TCPStore" else None


@contextlib.contextmanager
def interrupted(client: Any, temporary: Collection[int] = ()) -> Iterator[None]:
    """Have threads that wait in a TCPStore get an error; afterwards it works on.

    A client has one connection and waits in it for the server's answers. The connection is ended at
    the beginning; at the end, a new one takes its place, under the same descriptor. It cannot be
    replaced at once: who waits would go on waiting in the new one. Where nobody serves any more the
    client stays without.

    Args:
        client: the TCPStore.
        temporary: ports of servers that nobody needs afterwards: their clients stay without.
    """
    broken = connection(client, sockets.all_sockets())
    if broken is None:
        _log.warning("The connection to the store at %s:%d is unknown", client.host, client.port)
        yield
        return
    sockets.shut_down(broken)
    try:
        yield
    finally:
        if client.port not in temporary and is_served(client.host, client.port):
            _renew(client, broken)


def is_served(host: str, port: int) -> bool:
    """Return whether somebody takes connections there; torch tries for seconds if nobody does."""
    try:
        socket.create_connection((host, port), _ACCEPT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _renew(client: Any, broken: sockets.Descriptor) -> None:
    """Put a new connection in the place of one, if there is a server."""
    before = sockets.all_sockets()
    with contextlib.suppress(RuntimeError):  # nobody serves
        helper = type(client)(client.host, client.port, is_master=False, timeout=_CONNECT_TIMEOUT)
        new = connection(helper, sockets.all_sockets() - before)
        if new is not None and sockets.describe(broken.fd) == broken:
            os.dup2(new.fd, broken.fd, inheritable=False)


def connection(client: Any, among: set[sockets.Descriptor]) -> sockets.Descriptor | None:
    """Return the connection of a client to its server, one of ``among``; None = not known."""
    peers = {one: sockets.peer(one) for one in among}
    found = [one for one, peer in peers.items() if peer is not None and peer[1] == client.port]
    if len(found) == 1:
        return found[0]
    # A client's text has its descriptor; but it takes look-ups of names, seconds where these fail.
    match = _FD.search(repr(client))
    return sockets.describe(int(match[1])) if match else None
