"""The network by which a process of a job reaches the others, and its clock.

The shells of the coordination get it from outside: sockets in real processes, a simulated network
and virtual time in the simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from undaunted.base.timers import lease_clock_ns
from undaunted.coordinator import protocol as p
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.server import Server

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection, Handler
    from undaunted.coordinator.wire.handshake import Terms


class Listening(Protocol):
    """A port of this process at which others connect; see `Server`."""

    @property
    def port(self) -> int: ...  # noqa: D102

    async def start(self) -> None: ...  # noqa: D102

    async def close(self, reason: str) -> None: ...  # noqa: D102


class Network(Protocol):
    """See the module's documentation. Used on one loop."""

    def now_ns(self) -> int:
        """Return the time of leases, in nanoseconds; see `lease_clock_ns`."""

    async def connect(
        self, address: str, handler: Handler, *, longest: int, timeout_s: float
    ) -> Connection:
        """Connect to ``HOST:PORT``; see `undaunted.coordinator.wire.client.connect`.

        Raises:
            WireError: there is no connection; says why.
        """

    def server(
        self, port: int, handler: Handler, *, nodes: int, say: Callable[[str], None]
    ) -> Listening:
        """Make the server at which the nodes of a job meet; it is not started.

        Args:
            port: 0 = any that is free.
            handler: gets the connections.
            nodes: how many the job may have.
            say: called with lines about peers that did what they must not do.
        """


class Sockets:
    """The network that the system has.

    Args:
        terms: job, version, token and name of this node; without a token, only this machine.
        client, server: TLS for connecting and for listening; None = none.
    """

    def __init__(
        self,
        terms: Terms,
        client: ssl.SSLContext | None = None,
        server: ssl.SSLContext | None = None,
    ) -> None:
        self._terms, self._client, self._server = terms, client, server

    def now_ns(self) -> int:
        """See `Network`."""
        return lease_clock_ns()

    async def connect(
        self, address: str, handler: Handler, *, longest: int, timeout_s: float
    ) -> Connection:
        """See `Network`."""
        terms, tls = self._terms, self._client
        return await connect(address, handler, terms, tls=tls, longest=longest, timeout_s=timeout_s)

    def server(
        self, port: int, handler: Handler, *, nodes: int, say: Callable[[str], None]
    ) -> Server:
        """See `Network`."""
        host = "" if self._terms.token else "127.0.0.1"
        server = Server(f"{host}:{port}", handler, self._terms, tls=self._server, say=say)
        server.nodes = nodes
        server.longest = p.MAX_LINK_BYTES
        return server
