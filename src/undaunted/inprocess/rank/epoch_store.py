"""The store of an epoch: served by the member that comes first in its record, when it is wanted.

Every rank listens at a port of its own, and says so when it joins. If it listened only when the
epoch begins, others could be quicker; they would be refused, and torch tries again half a second
later. The server itself is made when somebody asks the first member for it, as most of the
milliseconds that it takes would otherwise be spent in every restart.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from undaunted.coordinator.wire.address import Address, from_socket, is_loopback, parse_address
from undaunted.inprocess.communication import name_server
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank.forks import forget_in_children
from undaunted.inprocess.rank.store_client import StoreClient

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

_BACKLOG = 4096
_LOOPBACK = "127.0.0.1"


class EpochStore:
    """The stores of one call, one after the other."""

    def __init__(self, host: str, timeout: dt.timedelta, base_store: Any = None) -> None:
        """Prepare.

        Args:
            host: under which others reach this machine; "" = nobody has to.
            timeout: of the store's operations.
            base_store: what a custom `store_factory` has made; used for all epochs.
        """
        self.base = base_store
        self._host = host
        self._timeout = timeout
        self._own = base_store is None
        self._lock = threading.Lock()
        self._reserved: socket.socket | None = None
        self._address = ""
        self._serves = False
        self._store: Any = None
        self._client: StoreClient | None = None
        self._prefix = ""
        forget_in_children(self)

    def address(self) -> str:
        """Return ``HOST:PORT`` where this rank would serve the next epoch's; "" = nowhere."""
        if not self._own or not self._host:
            return ""
        if self._reserved is None:
            self._reserved = _reserve(self._host)
        return str(Address(self._host, self._reserved.getsockname()[1]))

    def begin(self, prefix: str, address: str, *, serve: bool) -> None:
        """An epoch begins.

        Args:
            prefix: of keys in a store that lasts.
            address: where the epoch's store is, "" = this rank is alone.
            serve: here.
        """
        self._prefix = prefix
        self._address = address
        self._serves = serve and self._reserved is not None

    @property
    def listening_fd(self) -> int:
        """Readable when somebody wants the store that is to be served here; -1 = there is none."""
        reserved = self._reserved
        return reserved.fileno() if self._serves and reserved is not None else -1

    def get(self) -> Any:
        """Return the epoch's store, connected to.

        Raises:
            InternalError: nobody serves one.
        """
        import torch.distributed as dist

        if not self._own:
            return dist.PrefixStore(self._prefix, self.base)
        with self._lock:
            if self._store is None:
                self._store = self._make(dist)
                self.base = self._store
            return self._store

    def _make(self, dist: Any) -> Any:
        if not self._address:
            return dist.HashStore()
        where = parse_address(self._address)
        listening = self._take_listening()
        if listening is None:
            client = self._client = StoreClient(where, self._timeout)
            return client.connect()
        with name_server.asked_again_soon():
            return dist.TCPStore(
                _LOOPBACK,
                where.port,
                is_master=True,
                wait_for_workers=False,
                timeout=self._timeout,
                master_listen_fd=listening.detach(),
            )

    def _take_listening(self) -> socket.socket | None:
        if not self._serves:
            return None
        reserved, self._reserved, self._serves = self._reserved, None, False
        return reserved

    def break_off(self) -> None:
        """End what waits for the epoch's store, in any thread of this process."""
        if (client := self._client) is not None:
            client.give_up()
        if self._own and self._address:
            _shut_down_connections(parse_address(self._address))

    def drop(self) -> None:
        """The epoch is over."""
        with self._lock:
            self._store = None
            if self._client is not None:
                self._client.give_up()
                self._client = None
            if self._own:
                self.base = None
            if self._serves:
                self._close_reserved()
            self._address = ""

    def close(self) -> None:
        """The call is over."""
        self.drop()
        self._close_reserved()

    def after_fork(self) -> None:
        """In a child: nobody is to reach it there."""
        self._close_reserved()

    def _close_reserved(self) -> None:
        reserved, self._reserved, self._serves = self._reserved, None, False
        if reserved is not None:
            reserved.close()


def own_host(environ: Mapping[str, str]) -> str:
    """Return under which name or address other ranks reach this machine; "" = there are none.

    That is the address from which this machine would speak to ``MASTER_ADDR``.
    """
    if environ.get("WORLD_SIZE", "1") == "1":
        return ""
    master = environ.get("MASTER_ADDR", "")
    if environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"] or master in ("", "localhost"):
        return _LOOPBACK
    try:
        family, _, _, _, there = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(there)  # sends nothing
            here = str(sock.getsockname()[0])
    except OSError as error:
        raise InternalError(f"MASTER_ADDR={master!r} cannot be looked up: {error}") from error
    return master if is_loopback(here) else here


def _reserve(host: str) -> socket.socket:
    """Listen at a free port."""
    if is_loopback(host):
        return _bind(socket.AF_INET, _LOOPBACK)
    return _bind(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, "")


def _bind(family: socket.AddressFamily, host: str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, 0))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _shut_down_connections(server: Address) -> None:
    """Shut all connections of this process to a server down."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                _shut_down_if(int(name), server)


def _shut_down_if(fd: int, server: Address) -> None:
    copy = os.dup(fd)  # it may be closed, and its number be used again, at any time
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            peer = from_socket(sock.getpeername())
            if peer.port == server.port and _may_be(peer.host, server.host):
                sock.shutdown(socket.SHUT_RDWR)


def _may_be(number: str, host: str) -> bool:
    """Whether a host's number is that of ``host``; names are not looked up."""
    number = number.removeprefix("::ffff:")
    return number == host or is_loopback(number) or not _is_numeric(host)


def _is_numeric(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
