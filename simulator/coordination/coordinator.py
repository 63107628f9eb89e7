"""A coordinator on a host of its own, as a simulated process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.coordination.server import Server
from simulator.coordination.setup import READY
from simulator.virtual import messages as s

if TYPE_CHECKING:
    from simulator.coordination.cluster import Cluster
    from undaunted.coordinator.core.leader import Leader


class Coordinator:
    """Serves one leader."""

    def __init__(self, cluster: Cluster, name: str, address: str, leader: Leader) -> None:
        self._address = address
        self._server = Server(cluster, name, leader)

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulation.process.Process`."""
        commands = self._handle(event, now)
        return [*commands, s.Exit()] if self._server.over else commands

    def _handle(self, event: s.Event, now: int) -> list[s.Command]:
        server = self._server
        match event:
            case s.Received(connection=connection, message=message):
                return server.received(connection, message, now)
            case s.TimerFired(name=name):
                return server.timer(name, now)
            case s.Accepted(connection=connection):
                return [s.Send(connection, READY)]
            case s.Closed(connection=connection, reason=reason):
                return server.closed(connection, reason, now)
            case s.Answered():
                return server.answered(event, now)
            case s.Started():
                return [s.Listen(self._address), *server.begin(now)]
        return []
