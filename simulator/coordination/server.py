"""A leader in a simulated process, and the connections to it: what the shell is in a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.coordination.setup import ASK_TIMEOUT_NS, READY
from simulator.virtual import messages as s
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core.leader import LeaderState

if TYPE_CHECKING:
    from simulator.coordination.cluster import Cluster
    from undaunted.coordinator.core.leader import Leader

_NS = 1_000_000_000


class Server:
    """Carries out what one `Leader` commands."""

    def __init__(self, cluster: Cluster, name: str, leader: Leader) -> None:
        self.leader = leader
        self.over = False
        self._cluster = cluster
        self._name = name
        self._links: dict[int, str] = {}  # who is at the other end
        self._known: dict[int, set[str]] = {}  # who has confirmed which version of the ledger
        self._prefix = f"leader {leader.epoch} "
        self._rounds: dict[str, int] = {}

    @property
    def is_needed(self) -> bool:
        """Whether it stays: for those who have not heard how the job ended, or who leads next."""
        leader = self.leader
        return not self.over and (leader.state is LeaderState.ENDED or leader.ledger.round >= 0)

    def begin(self, now: int) -> list[s.Command]:
        """The first event of the leader."""
        return self.handle(c.Begin(), now)

    def received(self, link: int, message: Any, now: int) -> list[s.Command]:
        """Somebody who wants to follow, or does, has said something."""
        if isinstance(message, p.Hello):
            self._links[link] = message.node
        commands = self.handle(c.Received(link, message), now)
        if isinstance(message, p.Prepared):
            node, ledger = self._links.get(link, ""), self.leader.ledger
            known = self._known.setdefault(message.version, set())
            known.add(node)
            last = all(seat.node in known for seat in ledger.pending or ledger.table)
            self._cluster.confirmed(self._name, node, last=last)
        return commands

    def closed(self, link: int, reason: str, now: int) -> list[s.Command]:
        """A connection is gone."""
        self._links.pop(link, None)
        return self.handle(c.Closed(link, reason), now)

    def timer(self, name: str, now: int) -> list[s.Command]:
        """A timer ran out, of this leader or of an earlier one."""
        if not name.startswith(self._prefix):
            return []
        short = name.removeprefix(self._prefix)
        return self.handle(c.TimerFired(short, self._rounds.get(short, 0)), now)

    def answered(self, event: s.Answered, now: int) -> list[s.Command]:
        """A question was answered, of this leader or of an earlier one."""
        if not event.label.startswith(self._prefix):
            return []
        node = event.label.removeprefix(self._prefix)
        return self.handle(c.Answered(node, event.message), now)

    def drop(self) -> list[s.Command]:
        """Lead no more: another node does."""
        self.over = True
        links, self._links = sorted(self._links), {}
        return [s.Close(link) for link in links]

    def handle(self, event: c.Event, now: int) -> list[s.Command]:
        """Pass an event to the leader; return what follows."""
        if self.over:
            return []
        out: list[s.Command] = []
        for command in self.leader.handle(event, now):
            self._carry_out(command, out)
        return out

    def _carry_out(self, command: c.Command, out: list[s.Command]) -> None:
        match command:
            case c.Send(link=link, message=message):
                out.append(s.Send(link, message))
            case c.SetTimer(name=name, round=number, delay_s=delay_s):
                self._rounds[name] = number
                out.append(s.SetTimer(self._prefix + name, round(delay_s * _NS)))
            case c.Close(link=link):
                self._links.pop(link, None)
                out.append(s.Close(link))
            case c.Ask(node=node, address=address, message=question):
                out.append(s.Ask(self._prefix + node, address, question, ASK_TIMEOUT_NS))
            case c.Persist(ledger=ledger):
                seat = (self._name, self.leader.config.incarnation)
                self._cluster.persist(seat, self.leader.epoch, ledger)
            case c.Done():
                if self.leader.state is LeaderState.ENDED:
                    self._cluster.checker.job_over = True
                out += self.drop()


class Coordinator:
    """A coordinator on a host of its own: a process that serves one leader."""

    def __init__(self, cluster: Cluster, name: str, address: str, leader: Leader) -> None:
        self._address = address
        self._server = Server(cluster, name, leader)

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
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
