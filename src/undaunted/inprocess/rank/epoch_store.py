"""The store of an epoch, served by the first member in its record, once a rank wants it.

Every rank listens at another port, and says the address when it joins. If it listened only
when the epoch begins, quicker ranks would be refused, and torch tries again only half a second
later. The server itself is made when a rank connects.

Server and connections are kept from epoch to epoch, as long as the first member stays the same and
no rank waited in them when an epoch ended; each epoch has other keys.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from undaunted.base import torch_store
from undaunted.coordinator.wire.address import Address, parse_address
from undaunted.inprocess.communication.stores import StoreConnection
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank.forks import forget_in_children

if TYPE_CHECKING:
    import datetime as dt
    import socket


class EpochStore:
    """The stores of one call, one after the other."""

    def __init__(self, host: str, timeout: dt.timedelta, base_store: Any = None) -> None:
        """Prepare.

        Args:
            host: where other ranks reach this machine; "" = there are no other ranks.
            timeout: of the store's operations.
            base_store: result of a custom `store_factory`; used in all epochs.
        """
        self.base = base_store
        self._host = host
        self._timeout = timeout
        self._own = base_store is None
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None  # until a server is made of it
        self._own_address = ""
        self._connection: StoreConnection | None = None
        self._connected_to = ""
        self._has_server = False  # in this process, at the other end of the connection
        self._attempt: torch_store.Connecting | None = None
        # Of the epoch:
        self._over = True
        self._prefix = ""
        self._address = ""
        self._serves = False
        self._store: Any = None
        forget_in_children(self)

    def address(self) -> str:
        """Return ``HOST:PORT`` where this rank would serve the next epoch's store; "" = nowhere."""
        if not self._own or not self._host:
            return ""
        if self._has_server and not self._is_connected:
            self._disconnect()
        if self._listening is None and not self._has_server:
            self._listening = torch_store.listen(self._host)
            self._own_address = str(Address(self._host, self._listening.getsockname()[1]))
        return self._own_address

    def begin(self, prefix: str, address: str, *, serve: bool) -> None:
        """An epoch begins.

        Args:
            prefix: of its keys.
            address: of the epoch's store, "" = this rank is alone.
            serve: this rank serves it.
        """
        before, self._prefix = self._prefix, prefix
        self._address, self._serves = address, serve
        if address != self._connected_to or not self._is_connected:
            self._disconnect()
        elif self._has_server and self._connection is not None:
            self._connection.forget(f"{before}/")
        self._over = False

    @property
    def listening_fd(self) -> int:
        """Readable when a rank connects to the store to be served here; -1 = there is none."""
        listening = self._listening
        return listening.fileno() if self._serves and listening is not None else -1

    @property
    def port(self) -> int:
        """The port of the epoch's store, 0 = it has none."""
        return parse_address(self._address).port if self._own and self._address else 0

    def get(self) -> Any:
        """Return the epoch's store, with a connection to it.

        Raises:
            InternalError: no rank serves it, or the epoch is over.
        """
        import torch.distributed as dist

        if not self._own:
            return dist.PrefixStore(self._prefix, self.base)
        with self._lock:
            if self._over:
                raise InternalError("the iteration is over, and its store with it")
            if self._store is None:
                self._store = self._make(dist)
                self.base = self._store
            return self._store

    def serve(self) -> None:
        """Make the server, if it is to be here and there is none yet."""
        with self._lock:
            if self.listening_fd >= 0 and not self._over:
                self._connect()

    def _make(self, dist: Any) -> Any:
        if not self._address:
            return dist.HashStore()
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        return dist.PrefixStore(self._prefix, self._connection.client)

    def _connect(self) -> None:
        serve = self._serves
        self._connection = self._make_server() if serve else self._make_client()
        self._connected_to, self._has_server = self._address, serve

    def _make_server(self) -> StoreConnection:
        if self._listening is None:
            raise InternalError("the server of the iteration's store is gone")
        listening, self._listening = self._listening, None
        server = torch_store.serve(listening, self._timeout)
        return StoreConnection(server, torch_store.connection_of(server))

    def _make_client(self) -> StoreConnection:
        attempt = torch_store.Connecting(*parse_address(self._address), self._timeout)
        self._attempt = attempt
        if self._over:
            attempt.give_up()
        try:
            return StoreConnection(attempt.connect(), attempt.connection)
        except (InterruptedError, TimeoutError) as error:
            raise InternalError(
                f"the store at {self._address} cannot be reached: {error}"
            ) from None
        finally:
            self._attempt = None

    # --- its end ----------------------------------------------------------------------------------

    def break_off(self, *, surely: bool = False) -> None:
        """End all waits for the epoch's store, in any thread of this process.

        Args:
            surely: end the connection even if no thread seems to wait in it.
        """
        self._over = True
        if (attempt := self._attempt) is not None:
            attempt.give_up()
        connection = self._connection
        if self._store is None or connection is None or not connection.is_whole():
            return
        if surely or not connection.is_free():
            connection.end()

    def drop(self) -> None:
        """The epoch is over."""
        self._over = True
        with self._lock:
            self._store = None
            self._serves = False
            if self._own:
                self.base = None

    def close(self) -> None:
        """The call is over."""
        self.drop()
        self._disconnect()
        self._close_listening()

    def after_fork(self) -> None:
        """In a child: stop listening there."""
        self._close_listening()

    @property
    def _is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_whole()

    def _disconnect(self) -> None:
        self._connection = None
        self._connected_to = ""
        self._has_server = False

    def _close_listening(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
