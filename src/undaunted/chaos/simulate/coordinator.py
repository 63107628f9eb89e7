"""A coordinator on a host of its own, as a simulated process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.chaos.simulate.asking import READY, Asking
from undaunted.chaos.simulate.server import Server
from undaunted.simulation import messages as s

if TYPE_CHECKING:
    from undaunted.chaos.simulate.cluster import Cluster
    from undaunted.coordinator.core.leader import Leader


class Coordinator:
    """Serves one leader."""

    def __init__(self, cluster: Cluster, name: str, address: str, leader: Leader) -> None:
        self._address = address
        self._asking = Asking()
        self._server = Server(cluster, name, leader, self._asking)

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulation.process.Process`."""
        commands = self._handle(event, now)
        return [*commands, s.Exit()] if self._server.over else commands

    def _handle(self, event: s.Event, now: int) -> list[s.Command]:
        server, asking = self._server, self._asking
        match event:
            case s.Received(connection=connection, message=message):
                answered = asking.received(connection, message, now)
                return server.received(connection, message, now) if answered is None else answered
            case s.TimerFired(name=name):
                fired = server.timer(name, now)
                return fired if fired is not None else asking.failed(name, now) or []
            case s.Accepted(connection=connection):
                return [s.Send(connection, READY)]
            case s.Closed(connection=connection, reason=reason):
                gone = asking.closed(connection, now)
                return server.closed(connection, reason, now) if gone is None else gone
            case s.Started():
                return [s.Listen(self._address), *server.begin(now)]
            case s.Connected():
                asking.connected(event)
            case s.ConnectFailed(label=label):
                return asking.failed(label, now) or []
        return []
