"""A guard process with the ranks it serves, and the controller where it is there."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from simulator.inprocess.host import Host, Lease, Told
from simulator.inprocess.setup import LEASE_S, RECONNECT_S, SILENCE_S
from simulator.virtual import messages as s
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.guard import RankGuard
from undaunted.inprocess.guard.links import Bye

if TYPE_CHECKING:
    from simulator.inprocess.cluster import Cluster
    from simulator.inprocess.rank import Rank

_NS = 1_000_000_000
LEAD = "lead"
MOVED = "moved"


class _Served:
    """A rank and its guard."""

    def __init__(self, connection: int) -> None:
        self.connection = connection
        self.guard = RankGuard()
        self.rank: Rank | None = None


class Node:
    """See the module's documentation.

    Attributes:
        host: the controller and its links, None = it is elsewhere.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.host: Host | None = None
        self._cluster = cluster
        self._served: dict[int, _Served] = {}  # by the number of the connection, also when it ended
        self._local: set[int] = set()  # connections of ranks
        self._link: int | None = None  # to the controller; 0 = it is here
        self._heard_ns = 0
        self._attempt = 0
        self._commands: list[s.Command] = []
        self._now = 0

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
        self._commands, self._now = [], now
        self._handle(event)
        return self._commands

    def _handle(self, event: s.Event) -> None:
        match event:
            case s.Started():
                self._commands += [s.Listen(f"{self.name}:1"), s.Listen(f"{self.name}:2")]
                self._connect()
            case s.Told(what=what):
                self._moved(lead=what == LEAD)
            case s.Connected(label=label, connection=connection):
                self._connected(label, connection)
            case s.ConnectFailed(label=label):
                self._retry(label)
            case s.Accepted(connection=connection, address=address) if address == self.name:
                self._local.add(connection)
            case s.Received(connection=connection, message=message):
                self._received(connection, message)
            case s.Closed(connection=connection, reason=reason):
                self._closed(connection, reason)
            case s.TimerFired(name=name):
                self._timer(name)

    # --- ranks ----------------------------------------------------------------------------------

    def _from_rank(self, connection: int, message: m.FromRank) -> None:
        served = self._served.get(connection)
        if served is None:
            self._forget(message.job_rank)
            served = self._served[connection] = _Served(connection)
            served.rank = self._cluster.ranks.get(message.job_rank)
            if self._link is not None:
                self._feed(served, c.LinkUp())
        self._feed(served, message)

    def _forget(self, job_rank: int) -> None:
        """A process takes the place of one that has ended: of that nothing is said again."""
        for connection, served in list(self._served.items()):
            if served.guard.lost is not None and served.guard.lost.job_rank == job_rank:
                del self._served[connection]

    def _feed(self, served: _Served, event: m.FromRank | m.ToRank | c.GuardEvent) -> None:
        for command in served.guard.handle(event, self._now):
            self._carry_out(served, command)

    def _feed_all(self, event: c.LinkUp | c.LinkDown) -> None:
        for served in list(self._served.values()):
            self._feed(served, event)

    def _carry_out(self, served: _Served, command: c.GuardCommand) -> None:
        key = served.connection
        match command:
            case c.Report(message=message):
                self._report(message)
            case c.Pass(message=message):
                self._commands.append(s.Send(key, message))
            case c.LookIn(delay_s=delay_s):
                self._set_timer(f"look {key}", delay_s)
            case c.SetTimer(name=name, delay_s=delay_s):
                self._set_timer(f"guard {key} {name}", delay_s)
            case c.Signal(numbers=numbers):
                assert served.rank is not None
                self._cluster.signal(served.rank, kill=signal.SIGKILL in numbers)

    # --- the controller -------------------------------------------------------------------------

    def _report(self, message: m.FromGuard) -> None:
        if self._link == 0:
            assert self.host is not None
            self._commands.append(s.SetTimer(f"local {self.host.post(message)}", 0))
        elif self._link is not None:
            self._commands.append(s.Send(self._link, message))

    def told(self, told: Told) -> None:
        """The controller says something to ranks of this node."""
        for served in list(self._served.values()):
            call = served.guard.call
            if call is not None and call.enter.job_rank in told.job_ranks:
                self._feed(served, told.message)

    def _moved(self, *, lead: bool) -> None:
        """The controller is somewhere else now."""
        if self.host is not None and not lead:
            self._commands += self.host.close()
            self.host = None
        if lead:
            self.host = Host(self._cluster)
        self._link_down()
        self._connect()

    def _connect(self) -> None:
        self._attempt += 1
        if self._cluster.leader == self.name:
            if self.host is not None and self._link is None:
                self._link = 0
                self._feed_all(c.LinkUp())
            return
        label = f"controller {self._attempt}"
        self._commands.append(s.Connect(label, f"{self._cluster.leader}:1", 2 * _NS))

    def _connected(self, label: str, connection: int) -> None:
        if label != f"controller {self._attempt}" or self._link is not None:
            self._commands.append(s.Close(connection))
            return
        self._link, self._heard_ns = connection, self._now
        self._set_timer("lease", LEASE_S)
        self._set_timer("silence", SILENCE_S)
        self._feed_all(c.LinkUp())

    def _retry(self, label: str) -> None:
        if label == f"controller {self._attempt}":
            self._set_timer("retry", RECONNECT_S)

    def _link_down(self) -> None:
        if self._link is None:
            return
        if self._link:
            self._commands.append(s.Close(self._link))
        self._link = None
        self._feed_all(c.LinkDown())

    def _received(self, connection: int, message: object) -> None:
        if connection == self._link:
            self._heard_ns = self._now
            if isinstance(message, Told):
                self.told(message)
        elif connection in self._local:
            assert isinstance(message, m.FromRank)
            self._from_rank(connection, message)
        else:
            self._from_guard(connection, message)

    def _from_guard(self, connection: int, message: object) -> None:
        if self.host is None:
            self._commands.append(s.Close(connection))
            return
        self._carry(self.host.received(connection, message, self._now))

    def _carry(self, commands: list[s.Command | Told]) -> None:
        """What the controller commands; what it tells ranks of this node is heard at once."""
        for command in commands:
            if isinstance(command, Told):
                self.told(command)
            else:
                self._commands.append(command)

    # --- connections and timers -----------------------------------------------------------------

    def _closed(self, connection: int, reason: str) -> None:
        served = self._served.get(connection)
        if served is not None:
            reading = served.rank.read(self._now) if served.rank is not None else None
            self._feed(served, c.ProcessEnded("it has ended", reading))
        elif connection == self._link:
            self._link = None
            self._feed_all(c.LinkDown())
            self._set_timer("retry", RECONNECT_S)
        elif self.host is not None:
            self._commands += self.host.closed(connection, reason)

    def _timer(self, name: str) -> None:
        what, _, rest = name.partition(" ")
        match what:
            case "look":
                served = self._served.get(int(rest))
                if served is not None and served.rank is not None:
                    self._feed(served, c.Look(served.rank.read(self._now)))
            case "guard":
                key, _, rest = rest.partition(" ")
                served = self._served.get(int(key))
                if served is not None:
                    self._feed(served, c.TimerFired(rest))
            case "retry" if self._link is None:
                self._connect()
            case "lease" if self._link:
                self._commands.append(s.Send(self._link, Lease()))
                self._set_timer("lease", LEASE_S)
            case "silence" if self._link:
                self._look_at_silence()
            case _ if self.host is not None:
                self._carry(self.host.timer(name, self._now))

    def _look_at_silence(self) -> None:
        left_ns = self._heard_ns + round(SILENCE_S * _NS) - self._now
        if left_ns > 0:
            self._commands.append(s.SetTimer("silence", left_ns))
        else:
            assert self._link is not None
            self._commands.append(s.Send(self._link, Bye(back=True)))
            self._link_down()
            self._connect()

    def _set_timer(self, name: str, delay_s: float) -> None:
        self._commands.append(s.SetTimer(name, max(0, round(delay_s * _NS))))
