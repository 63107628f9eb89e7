"""A connection to a TCPStore that can be ended from another thread.

A client of a TCPStore waits for the server's answers in its one connection, and has no function
that ends the wait. Shutting the connection down does.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.base import name_server, open_sockets
from undaunted.checkpointing.agreement.bounded import (
    ABORTED,
    AbortedError,
    Bounded,
    TimedOutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.base.open_sockets import Descriptor

# Whoever connects looks which connection is new.
_connecting = threading.Lock()
_LOOPBACK = "127.0.0.1"
_BACKLOG = 4096


def _never() -> bool:
    return False


class StoreLink:
    """Implements `agreement.Link`.

    Attributes:
        host, port: of the server.
    """

    def __init__(self, host: str, port: int) -> None:
        """Args: where the store is served."""
        self.port = port
        self.host = host
        self._connections: set[Descriptor] = set()
        self._reopening: Bounded | None = None

    @classmethod
    def serve(cls, timeout_s: float, at: str = _LOOPBACK) -> tuple[StoreLink, Any]:
        """Serve a store in this process at a free port, and connect to it.

        A torch store knows no token: whoever reaches the port can read and write it.

        Args:
            timeout_s: of the store.
            at: an address of this machine, as a number; "" = all of them.

        Returns:
            The link, and the store: the server ends with it.

        Raises:
            OSError: this machine has no such address.
        """
        listening = _listen(at)
        link = cls(at or _LOOPBACK, listening.getsockname()[1])
        with _connecting, name_server.asked_again_soon():
            store = _store(link.host, link.port, timeout_s, listening.detach())
            link._connections = _to_port(link.port)
        return link, store

    def reopen(self, timeout_s: float, given_up: Callable[[], bool] = _never) -> Any:
        """Return a store that is connected to the server.

        Args:
            timeout_s: how long to wait for the server.
            given_up: says whether the caller was interrupted before this could be.

        Raises:
            SaveError: the server does not answer in time, or this was interrupted.
            RuntimeError: nobody serves there; torch says why.
        """
        before: set[Descriptor] | None = None

        def end() -> None:
            if before is not None:
                _shut_down(_to_port(self.port) - before)

        self._reopening = bounded = Bounded(end)
        if given_up():  # from now on `interrupt` ends this
            raise AbortedError(ABORTED)
        if not _connecting.acquire(timeout=timeout_s):
            raise TimedOutError(f"another connection is being made for {timeout_s:g} s")
        try:
            before = _to_port(self.port)
            store = bounded.call(lambda: self._connect(timeout_s), timeout_s + 1.0)
            self._connections = _to_port(self.port) - before
        finally:
            _connecting.release()
            self._reopening = None
        return store

    def interrupt(self) -> None:
        """See `agreement.Link`."""
        _shut_down(self._connections)
        if (bounded := self._reopening) is not None:
            bounded.abort()

    def _connect(self, timeout_s: float) -> Any:
        with name_server.asked_again_soon():
            return _store(self.host, self.port, timeout_s)


def _listen(at: str) -> socket.socket:
    if at:
        family = socket.AF_INET6 if ":" in at else socket.AF_INET
        return socket.create_server((at, 0), family=family, backlog=_BACKLOG)
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), backlog=_BACKLOG)
    return socket.create_server(
        ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
    )


def _store(host: str, port: int, timeout_s: float, listening: int | None = None) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(
        host,
        port,
        is_master=listening is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listening,
    )


def _to_port(port: int) -> set[Descriptor]:
    """Return the connections of this process to that port of any host."""
    peers = ((one, open_sockets.peer(one)) for one in open_sockets.all_sockets())
    return {one for one, at in peers if at is not None and at[1] == port}


def _shut_down(connections: set[Descriptor]) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):  # there is no descriptor left to do it by
            open_sockets.shut_down(connection)
