"""A client of a TCPStore that is used in one epoch after the other.

New connections are avoided, as torch looks up names of addresses for each, at both ends. A client
has one connection, and torch sends one request at a time: who waits for a key keeps all others of
this process waiting. So the connection is ended if anybody waits in it when an epoch is over.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from undaunted.inprocess import background
from undaunted.inprocess.communication import sockets, stores

if TYPE_CHECKING:
    from collections.abc import Callable

# Within this time a request is answered where nobody waits, seconds.
_ANSWER_S = 0.1


class StoreConnection:
    """Of this process to a server, which may be in this process as well.

    Attributes:
        client: torch's store.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        """Connect.

        Args:
            connect: returns a new TCPStore.

        Raises:
            RuntimeError: it does not succeed.
        """
        before = sockets.all_sockets()
        self.client = connect()
        self._socket = stores.connection(self.client, sockets.all_sockets() - before)

    def is_whole(self) -> bool:
        """Return whether the connection is up, as far as is known here."""
        return self._socket is not None and sockets.is_established(self._socket)

    def is_free(self) -> bool:
        """Return whether nobody waits in it: a request is answered soon."""
        answered = threading.Event()

        def ask() -> None:
            self.client.num_keys()
            answered.set()

        _start(ask)
        return answered.wait(_ANSWER_S)

    def end(self) -> None:
        """Have those who wait in it get an error, now and later."""
        if self._socket is not None:
            sockets.shut_down(self._socket)

    def forget(self, prefix: str) -> None:
        """Delete the keys that begin with ``prefix``, in a thread beside.

        A store of torch 2.8 or older cannot name its keys: there they stay.
        """
        list_keys: Callable[[], list[str]] = getattr(self.client, "list_keys", list)

        def delete() -> None:
            for key in list_keys():
                if key.startswith(prefix):
                    self.client.delete_key(key)

        _start(delete)


def _start(run: Callable[[], None]) -> None:
    """Run something that ends with an error when the connection is ended."""

    def quietly() -> None:
        with contextlib.suppress(RuntimeError):
            run()

    background.start(quietly, "store")
