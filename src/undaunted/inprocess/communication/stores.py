"""Using torch's TCPStore so that waits in it can be interrupted.

A client has one connection, and torch sends one request at a time: a thread that waits for a key
blocks all other threads. The wait ends with the connection. New connections are avoided, as torch
looks up the names of the addresses at both ends: `StoreConnection` is kept from epoch to epoch, and
ended only if a thread waits in it; `interrupted` puts a new connection in the place of the one that
was ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.base import open_sockets, threads, torch_store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from undaunted.base.open_sockets import Descriptor

_log = logging.getLogger("undaunted")

# A server is slow to answer while it looks up names.
_CONNECT_TIMEOUT = timedelta(seconds=10)
_ACCEPT_TIMEOUT_S = 1.0


def tcp_client(store: Any) -> Any:
    """Return the TCPStore behind a store, prefixed or not; None = it is another kind of store."""
    client = getattr(store, "_underlying_non_prefix_store", store)
    return client if type(client).__name__ == "TCPStore" else None


@contextlib.contextmanager
def interrupted(client: Any, temporary: Collection[int] = ()) -> Iterator[None]:
    """Make threads that wait in a TCPStore get an error; afterwards the store works again.

    The client's connection is ended at the beginning; at the end, a new one takes its place, under
    the same descriptor. Not at once, or threads that wait would go on waiting in the new one. If
    there is no server any more, the client gets no new connection.

    Args:
        client: the TCPStore.
        temporary: ports of servers whose clients need no new connection.
    """
    broken = torch_store.connection_of(client)
    if broken is None:
        _log.warning("The connection to the store at %s:%d is unknown", client.host, client.port)
        yield
        return
    open_sockets.shut_down(broken)
    try:
        yield
    finally:
        if client.port not in temporary and is_served(client.host, client.port):
            _renew(client, broken)


def is_served(host: str, port: int) -> bool:
    """Return whether a server takes connections; torch would try for seconds if there is none."""
    try:
        socket.create_connection((host, port), _ACCEPT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _renew(client: Any, broken: Descriptor) -> None:
    """Put a new connection in the place of one, if there is a server."""
    before = torch_store.connections_to(client.port)
    with contextlib.suppress(RuntimeError):  # there is no server
        helper = torch_store.connect(client.host, client.port, _CONNECT_TIMEOUT)
        new = torch_store.connection_of(helper, before)
        if new is not None and open_sockets.describe(broken.fd) == broken:
            os.dup2(new.fd, broken.fd, inheritable=False)


# If no thread waits in the connection, a request is answered within this time, seconds.
_ANSWER_S = 0.1


class StoreConnection:
    """The connection of this process to a store's server, which may be in this process too.

    Attributes:
        client: torch's store.
    """

    def __init__(self, client: Any, connection: Descriptor | None) -> None:
        """Take a TCPStore and its connection, None = that is not known."""
        self.client = client
        self._socket = connection

    def is_whole(self) -> bool:
        """Return whether the connection is up, as far as is known here."""
        return self._socket is not None and open_sockets.is_established(self._socket)

    def is_free(self) -> bool:
        """Return whether no thread waits in it: a request is answered soon."""
        answered = threading.Event()

        def ask() -> None:
            self.client.num_keys()
            answered.set()

        _start(ask)
        return answered.wait(_ANSWER_S)

    def end(self) -> None:
        """End it: waiting in it raises an error, now and later."""
        if self._socket is not None:
            open_sockets.shut_down(self._socket)

    def forget(self, prefix: str) -> None:
        """Delete the keys that begin with ``prefix``, in another thread.

        A store of torch 2.8 or older cannot list its keys: there they stay.
        """
        list_keys: Callable[[], list[str]] = getattr(self.client, "list_keys", list)

        def delete() -> None:
            for key in list_keys():
                if key.startswith(prefix):
                    self.client.delete_key(key)

        _start(delete)


def _start(run: Callable[[], None]) -> None:
    """Call ``run`` in a thread; it gets an error when the connection is ended."""

    def quietly() -> None:
        with contextlib.suppress(RuntimeError):
            run()

    threads.start(quietly, "store")
