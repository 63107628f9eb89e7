"""Connecting to a TCPStore so that whoever waits for that can be interrupted.

torch's constructor does not come back for a signal. Where nobody serves, or the connection breaks
while it waits for the server's answer, it tries again until its timeout is over: minutes. So it
runs in a thread of its own, with a short timeout, again and again.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.base import name_server
from undaunted.coordinator.wire.address import is_loopback
from undaunted.inprocess import background
from undaunted.inprocess.communication import sockets
from undaunted.inprocess.exception import InternalError

if TYPE_CHECKING:
    import socket

    from undaunted.coordinator.wire.address import Address

_LOOPBACK = "127.0.0.1"
_ALL = ("::", "0.0.0.0")  # noqa: S104 - compared with
# Longer from one attempt to the next: a server that many connect to at once may be slow.
_FIRST_ATTEMPT_S = 2.0
# How much later than the last attempt the thread may be done.
_MARGIN_S = 5.0


class StoreClient:
    """Connects to one server, once."""

    def __init__(self, server: Address, timeout: timedelta) -> None:
        """Prepare.

        Args:
            server: where it listens.
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
            InternalError: it was given up.
            RuntimeError: nobody serves it; torch says why.
        """
        background.start(self._connect, "store")
        self._done.wait(self._timeout.total_seconds() + _MARGIN_S)
        if self._store is None:
            raise self._error or InternalError(f"the store at {self._server} cannot be reached")
        return self._store

    def give_up(self) -> None:
        """Have `connect` raise, and end the connection of its attempt, for its thread to end."""
        self._given_up = True
        self._done.set()
        for one in sockets.all_sockets():
            peer = sockets.peer(one)
            if peer is not None and peer[1] == self._server.port and self._may_be_at(peer[0]):
                sockets.shut_down(one)

    def _may_be_at(self, number: str) -> bool:
        """Whether a host's number is that of the server; names are not looked up."""
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
        import torch.distributed as dist

        with name_server.asked_again_soon():
            store = dist.TCPStore(
                self._server.host,
                self._server.port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            )
        store.set_timeout(self._timeout)
        return store


def serve_store(listening: socket.socket, timeout: timedelta) -> Any:
    """Return a store that this process serves at a socket, which is torch's from now on."""
    import torch.distributed as dist

    host, port, *_ = listening.getsockname()
    with name_server.asked_again_soon():
        return dist.TCPStore(
            _LOOPBACK if host in _ALL else host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listening.detach(),
        )


def _is_numeric(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
