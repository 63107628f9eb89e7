"""Ending a wait in a TCPStore without an end to the store."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.communication import sockets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_log = logging.getLogger("nvrx")

_CONNECT_TIMEOUT = timedelta(seconds=2)
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
    connection = _connection(client, sockets.all_sockets())
    if connection is None:
        _log.warning("The connection to the store at %s:%d is unknown", client.host, client.port)
        yield
        return
    sockets.shut_down(connection)
    try:
        yield
    finally:
        if client.port not in temporary:
            _renew(client, connection)


def _renew(client: Any, connection: sockets.Descriptor) -> None:
    """Put a new connection in the place of one, if there is a server."""
    before = sockets.all_sockets()
    with contextlib.suppress(RuntimeError):  # nobody serves
        helper = type(client)(client.host, client.port, is_master=False, timeout=_CONNECT_TIMEOUT)
        new = _connection(helper, sockets.all_sockets() - before)
        if new is not None and sockets.describe(connection.fd) == connection:
            os.dup2(new.fd, connection.fd, inheritable=False)


def _connection(client: Any, among: set[sockets.Descriptor]) -> sockets.Descriptor | None:
    """Return the connection of a client to its server, one of ``among``; None = not known."""
    found = [one for one in among if sockets.peer_port(one) == client.port]
    if len(found) == 1:
        return found[0]
    # A client's text has its descriptor; but it takes look-ups of names, seconds where these fail.
    match = _FD.search(repr(client))
    return sockets.describe(int(match[1])) if match else None
