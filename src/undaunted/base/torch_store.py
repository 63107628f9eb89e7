"""Serving torch's TCPStore, connecting to one, and finding the connections of its clients.

A client of a TCPStore has one connection, and no function that ends a wait for an answer: only the
end of the connection does. Torch's constructor does not return for a signal. If there is no server,
or the connection ends while it waits for the server's answer, it tries again until its timeout is
over: minutes. So `Connecting` runs it in another thread, with a short timeout, again and again.
Torch looks up names for every connection. Nothing here imports torch before it is used.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.base import name_server, open_sockets, threads

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from undaunted.base.open_sockets import Descriptor

LOOPBACK = "127.0.0.1"
_ALL = ("::", "0.0.0.0")  # noqa: S104 - compared with
_BACKLOG = 4096
_FD = re.compile(r"SocketImpl\(fd=(\d+),")
# Longer from one attempt to the next: a server that many connect to at once may be slow.
_FIRST_ATTEMPT_S = 2.0
# For the thread to end after its last attempt.
_MARGIN_S = 5.0


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


class Connecting:
    """Connects to one server, once, until it is given up.

    Attributes:
        connection: of the store to its server; None = it is not known.
    """

    def __init__(self, host: str, port: int, timeout: timedelta) -> None:
        """Prepare.

        Args:
            host: of the server.
            port: of the server.
            timeout: of connecting to it, and of the store's operations.
        """
        self.connection: Descriptor | None = None
        self._host, self._port, self._timeout = host, port, timeout
        self._before: set[Descriptor] | None = None
        self._done = threading.Event()
        self._given_up = False
        self._store: Any = None
        self._error: Exception | None = None

    def connect(self) -> Any:
        """Return the store.

        Raises:
            InterruptedError: `give_up` was called.
            RuntimeError: the server cannot be reached; the message is torch's.
            TimeoutError: torch has not returned in time.
        """
        if self._given_up:
            raise InterruptedError("the store was given up")
        self._before = connections_to(self._port)
        threads.start(self._run, "store")
        try:
            self._done.wait(self._timeout.total_seconds() + _MARGIN_S)
        except BaseException:
            self.give_up()
            raise
        if self._given_up:
            raise InterruptedError("the store was given up")
        if self._store is None:
            raise self._error or TimeoutError(f"no answer within {self._timeout}")
        self.connection = connection_of(self._store, self._before)
        return self._store

    def give_up(self) -> None:
        """Make `connect` raise, and end the connection of its attempt, so that its thread ends."""
        self._given_up = True
        self._done.set()
        if self._before is not None:
            for one in connections_to(self._port) - self._before:
                with contextlib.suppress(OSError):  # there is no descriptor left to do it by
                    open_sockets.shut_down(one)

    def _run(self) -> None:
        deadline = time.monotonic() + self._timeout.total_seconds()
        longest_s = _FIRST_ATTEMPT_S
        while not self._given_up and (left_s := deadline - time.monotonic()) > 0:
            try:
                limit = timedelta(seconds=min(longest_s, left_s))
                store = connect(self._host, self._port, limit)
                store.set_timeout(self._timeout)
                self._store = store
                break
            except Exception as error:  # noqa: BLE001 - raised in `connect`
                self._error = error
            longest_s *= 2
        self._done.set()


def connections_to(port: int) -> set[Descriptor]:
    """Return the connections of this process to that port of any host."""
    peers = ((one, open_sockets.peer(one)) for one in open_sockets.all_sockets())
    return {one for one, at in peers if at is not None and at[1] == port}


def connection_of(client: Any, before: AbstractSet[Descriptor] = frozenset()) -> Descriptor | None:
    """Return the connection of a client to its server; None = it is not known.

    Args:
        client: a TCPStore.
        before: connections to its port that were there before it.
    """
    among = connections_to(client.port) - before
    if len(among) == 1:
        return next(iter(among))
    # The client's repr has its descriptor, but looks up names, which may take seconds.
    match = _FD.search(repr(client))
    return open_sockets.describe(int(match[1])) if match else None
