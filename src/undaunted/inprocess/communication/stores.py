"""Using torch's TCPStore so that waits for it, and in it, can be interrupted.

torch's constructor does not return for a signal. If there is no server, or the connection breaks
while it waits for the server's answer, it tries again until its timeout is over: minutes. So
`StoreClient` runs it in a thread of its own, with a short timeout, again and again.

A client has one connection, and torch sends one request at a time: a thread that waits for a key
blocks all other threads. To end the wait, the connection is ended. New connections are avoided, as
torch looks up the names of the addresses at both ends: `StoreConnection` is kept from epoch to
epoch, and ended only if a thread waits in it; `interrupted` puts a new connection in the place of
the one that was ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.base import open_sockets, torch_store
from undaunted.coordinator.wire.address import is_loopback
from undaunted.inprocess import threads
from undaunted.inprocess.exception import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from undaunted.coordinator.wire.address import Address

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
    broken = torch_store.connection_of(client, torch_store.connections_to(client.port))
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


def _renew(client: Any, broken: open_sockets.Descriptor) -> None:
    """Put a new connection in the place of one, if there is a server."""
    before = open_sockets.all_sockets()
    with contextlib.suppress(RuntimeError):  # there is no server
        helper = torch_store.connect(client.host, client.port, _CONNECT_TIMEOUT)
        among = torch_store.connections_to(client.port) - before
        new = torch_store.connection_of(helper, among)
        if new is not None and open_sockets.describe(broken.fd) == broken:
            os.dup2(new.fd, broken.fd, inheritable=False)


# Longer from one attempt to the next: a server that many connect to at once may be slow.
_FIRST_ATTEMPT_S = 2.0
# For the thread to end after its last attempt.
_MARGIN_S = 5.0


class StoreClient:
    """Connects to one server, once."""

    def __init__(self, server: Address, timeout: timedelta) -> None:
        """Prepare.

        Args:
            server: its address.
            timeout: of connecting to it, and of the store's operations.
        """
        self._server = server
        self._timeout = timeout
        self._done = threading.Event()
        self._given_up = False
        self._store: Any = None
        self._error: Exception | None = None

    def connect(self) -> Any:
        """Return the store.

        Raises:
            InternalError: `give_up` was called.
            RuntimeError: the server cannot be reached; the message is torch's.
        """
        threads.start(self._connect, "store")
        self._done.wait(self._timeout.total_seconds() + _MARGIN_S)
        if self._store is None:
            raise self._error or InternalError(f"the store at {self._server} cannot be reached")
        return self._store

    def give_up(self) -> None:
        """Make `connect` raise, and end the connection of its attempt, so that its thread ends."""
        self._given_up = True
        self._done.set()
        for one in torch_store.connections_to(self._server.port):
            peer = open_sockets.peer(one)
            if peer is not None and self._may_be_at(peer[0]):
                open_sockets.shut_down(one)

    def _may_be_at(self, number: str) -> bool:
        """Whether a numeric address may be the server's; looks up no names."""
        host, number = self._server.host, number.removeprefix("::ffff:")
        return number == host or is_loopback(number) or not _is_numeric(host)

    def _connect(self) -> None:
        deadline = time.monotonic() + self._timeout.total_seconds()
        longest_s = _FIRST_ATTEMPT_S
        while not self._given_up and (left_s := deadline - time.monotonic()) > 0:
            try:
                self._store = self._attempt(min(longest_s, left_s))
                break
            except Exception as error:  # noqa: BLE001 - raised in `connect`
                self._error = error
            longest_s *= 2
        self._done.set()

    def _attempt(self, timeout_s: float) -> Any:
        host, port = self._server
        store = torch_store.connect(host, port, timedelta(seconds=timeout_s))
        store.set_timeout(self._timeout)
        return store


def _is_numeric(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


# If no thread waits in the connection, a request is answered within this time, seconds.
_ANSWER_S = 0.1


class StoreConnection:
    """The connection of this process to a store's server, which may be in this process too.

    Attributes:
        client: torch's store.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        """Connect.

        Args:
            connect: returns a new TCPStore.

        Raises:
            RuntimeError: the server cannot be reached.
        """
        before = open_sockets.all_sockets()
        self.client = connect()
        new = torch_store.connections_to(self.client.port) - before
        self._socket = torch_store.connection_of(self.client, new)

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
        """Delete the keys that begin with ``prefix``, in a thread of its own.

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
