"""Machines, processes, and a seeded network between them, as TCP shows itself to a program.

* Messages of one connection arrive in the order in which they were sent, each once or never; those
  of different connections overtake each other.
* A lost segment is sent again: it is a delay, for itself and for all that follow it.
* A cut link (a direction between machines) lets nothing pass. What was sent meanwhile arrives after
  it has healed, as TCP goes on trying; nobody is told in between. Only a reset is lost for ever.
* A process that ends closes its connections: the other ends see the end of file or a reset. A
  machine that loses power says nothing; when it is back, whoever still writes to it gets a reset.
* A connection is accepted by the machine, not by the process: one can be made to a paused process.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from simulator.virtual.messages import (
    Accepted,
    Closed,
    Connected,
    ConnectFailed,
    Received,
    TimerFired,
)
from simulator.virtual.schedule import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from random import Random

    from simulator.virtual.messages import Command, Connect, Event
    from simulator.virtual.schedule import Schedule

# TCP's first retransmission of a segment, and of the request for a connection.
_RETRANSMIT_NS = 200 * NS_PER_MS
_CONNECT_AGAIN_NS = NS_PER_S
_MAX_LOST_IN_A_ROW = 6

END_OF_FILE = "end of file"
RESET = "reset"
REFUSED = "refused"
TIMED_OUT = "timed out"


class _Control:
    """What travels in a stream beside messages."""


_OPEN = _Control()
_FIN = _Control()
_RST = _Control()


class Process(Protocol):
    """What a simulated program must be: events in, commands out."""

    def handle(self, event: Event, now: int) -> Iterable[Command]:
        """Take one event at the time ``now`` (nanoseconds); return what follows from it."""


class Machine:
    """A host with an address. ``alive``: it has power; otherwise it says nothing at all."""

    __slots__ = ("alive", "name", "processes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.processes: list[Running] = []


class Timer:
    """A deadline, and when the schedule looks at it next.

    A timer that is put off again and again (a lease) costs one entry of the schedule per time that
    it could have fired, not one per change. ``due``: it has run out, and its process, paused or
    slow, does not know yet.
    """

    __slots__ = ("deadline", "due", "fired", "name", "owner", "queued")

    def __init__(self, owner: Running, name: str) -> None:
        self.owner = owner
        self.name = name
        self.fired = TimerFired(name)
        self.deadline: int | None = None
        self.due = False
        self.queued: int | None = None


class Running:
    """One process from its start to its end; a process started again is another one."""

    __slots__ = (
        "alive",
        "backlog",
        "behaviour",
        "busy_until",
        "endpoints",
        "listening",
        "machine",
        "name",
        "paused",
        "slow_ns",
        "timers",
    )

    def __init__(self, name: str, behaviour: Process, machine: Machine) -> None:
        self.name = name
        self.behaviour = behaviour
        self.machine = machine
        self.alive = True
        self.paused = False
        self.slow_ns = 0
        self.busy_until = 0
        self.backlog: deque[tuple[Event, Endpoint | None]] = deque()
        self.timers: dict[str, Timer] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.listening: list[str] = []


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """How the network behaves while nothing is cut.

    Attributes:
        min_delay_ns, max_delay_ns: one way, uniformly distributed.
        loss: share of messages whose segment is lost and sent again.
    """

    min_delay_ns: int = 50_000
    max_delay_ns: int = NS_PER_MS
    loss: float = 0.001


class Endpoint:
    """One end of a connection. ``arrival``: when the last message on its way here arrives."""

    __slots__ = ("arrival", "held", "held_since", "number", "open", "owner", "peer")

    def __init__(self, number: int, owner: Running) -> None:
        self.number = number
        self.owner = owner
        self.peer: Endpoint = self
        self.open = True
        self.arrival = 0
        self.held: list[Any] = []
        self.held_since = 0


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Nothing passes from any of ``sources`` to any of ``targets`` (names of machines)."""

    sources: frozenset[str]
    targets: frozenset[str]


@dataclass(slots=True, eq=False)
class _Attempt:
    owner: Running
    command: Connect
    deadline: int = 0
    again_ns: int = _CONNECT_AGAIN_NS
    pending: bool = True


class Network:
    """See the module's documentation.

    Attributes:
        machines: by name.
        schedule: the clock.
        deliver: tells a process an event, of one of its connections or of none.
        sent: number of messages that were put on their way.
    """

    def __init__(
        self,
        schedule: Schedule,
        random: Random,
        rules: NetworkRules,
        deliver: Callable[[Running, Event, Endpoint | None], None],
    ) -> None:
        self.machines: dict[str, Machine] = {}
        self.schedule = schedule
        self.deliver = deliver
        self.sent = 0
        self._random = random
        self._min_delay_ns, self._loss = rules.min_delay_ns, rules.loss
        self._span_ns = rules.max_delay_ns - rules.min_delay_ns
        self._listeners: dict[str, Running] = {}
        self._cuts: list[Cut] = []
        self._holding: dict[Endpoint, None] = {}  # in the order in which they began to
        self._numbers = 0

    # --- what processes ask for -----------------------------------------------------------------

    def listen(self, owner: Running, address: str) -> None:
        """Accept connections to ``address`` for a process."""
        self._listeners[address] = owner
        owner.listening.append(address)

    def connect(self, owner: Running, command: Connect) -> None:
        """Begin to connect."""
        attempt = _Attempt(owner, command)
        now = self.schedule.now
        attempt.deadline = now + command.timeout_ns
        self.schedule.at(now + self.delay(), self._request, attempt)

    def send(self, endpoint: Endpoint, message: Any) -> None:
        """Put a message on its way to the other end."""
        self.sent += 1
        peer = endpoint.peer
        arrival = max(self.schedule.now + self.delay(), peer.arrival)
        peer.arrival = arrival
        self.schedule.at(arrival, self._arrive, (peer, message))

    def close(self, endpoint: Endpoint, *, abort: bool = False) -> None:
        """Close one end; the other sees the end of file, or a reset if ``abort``."""
        endpoint.open = False
        endpoint.owner.endpoints.pop(endpoint.number, None)
        self.send(endpoint, _RST if abort else _FIN)

    # --- what happens to machines and links -----------------------------------------------------

    def slow(self, max_delay_ns: int) -> None:
        """Let everything take up to so long on its way from now on."""
        self._span_ns = max_delay_ns - self._min_delay_ns

    def forget(self, process: Running, *, silently: bool) -> None:
        """Take away everything a process has that is over. ``silently``: nobody is told."""
        for endpoint in list(process.endpoints.values()):
            if silently:
                endpoint.open = False
                endpoint.peer.held.clear()  # nobody is there to send it again
            else:
                self.close(endpoint, abort=self._random.random() < 0.5)
        process.endpoints.clear()
        for address in process.listening:
            if self._listeners.get(address) is process:
                del self._listeners[address]

    def cut(self, sources: Collection[str], targets: Collection[str]) -> Cut:
        """Let nothing pass from the ones to the others until `heal`."""
        cut = Cut(frozenset(sources), frozenset(targets))
        self._cuts.append(cut)
        return cut

    def heal(self, cut: Cut) -> None:
        """End a cut; what TCP has kept arrives after some of the time that the cut lasted."""
        if cut not in self._cuts:
            return
        self._cuts.remove(cut)
        now = self.schedule.now
        for endpoint in self._holding:
            lasted = max(now - endpoint.held_since, _RETRANSMIT_NS)
            at = now + int(self._random.random() * lasted)
            self.schedule.at(at, self._release, endpoint)

    def break_connections(self, one: str, other: str) -> int:
        """Reset every connection between two machines, as a middlebox does; return how many."""
        broken = [
            endpoint
            for process in self.machines[one].processes
            for endpoint in process.endpoints.values()
            if endpoint.peer.owner.machine.name == other
        ]
        for endpoint in broken:
            for end in (endpoint, endpoint.peer):
                end.peer.held.clear()
                self.schedule.at(self.schedule.now, self._reset, end)
        return len(broken)

    # --- on the way -----------------------------------------------------------------------------

    def delay(self, trips: int = 1) -> int:
        """How long a segment travels, ``trips`` times one after the other; nanoseconds."""
        random = self._random.random
        delay = self._min_delay_ns + int(random() * self._span_ns)
        loss = self._loss
        if loss and random() < loss * trips:
            lost = 1
            while lost < _MAX_LOST_IN_A_ROW and random() < loss:
                lost += 1
            return delay * trips + _RETRANSMIT_NS * ((1 << lost) - 1)
        return delay * trips

    def listener(self, address: str) -> Running | None:
        """The process that listens on an address, None = none."""
        return self._listeners.get(address)

    def blocked(self, source: str, target: str) -> bool:
        """Whether a cut lets nothing pass from one machine to another."""
        for cut in self._cuts:  # noqa: SIM110 - called for most events, mostly without a cut
            if source in cut.sources and target in cut.targets:
                return True
        return False

    def cut_off(self, one: str, other: str) -> bool:
        """Whether a cut lets nothing pass between two machines, in one direction at least."""
        return bool(self._cuts) and (self.blocked(one, other) or self.blocked(other, one))

    def _arrive(self, item: tuple[Endpoint, Any]) -> None:
        endpoint, message = item
        machine = endpoint.owner.machine
        if not machine.alive:
            return
        if endpoint.held or (
            self._cuts and self.blocked(endpoint.peer.owner.machine.name, machine.name)
        ):
            self._hold(endpoint, message)
        elif endpoint.open:
            if isinstance(message, _Control):
                self._control(endpoint, message)
            else:
                self.deliver(endpoint.owner, Received(endpoint.number, message), endpoint)
        elif not isinstance(message, _Control) or message is _OPEN:
            self._refuse(endpoint)

    def _control(self, endpoint: Endpoint, message: _Control) -> None:
        owner = endpoint.owner
        if message is _FIN:
            self.deliver(owner, Closed(endpoint.number, END_OF_FILE), endpoint)
        elif message is _RST:
            self.deliver(owner, Closed(endpoint.number, RESET), endpoint)
        else:
            peer = endpoint.peer.owner.machine.name
            self.deliver(owner, Accepted(endpoint.number, peer), endpoint)

    def _refuse(self, endpoint: Endpoint) -> None:
        """Answer data for a connection that is over."""
        if endpoint.peer.open:
            self.send(endpoint, _RST)

    def _reset(self, endpoint: Endpoint) -> None:
        if endpoint.open:
            self.deliver(endpoint.owner, Closed(endpoint.number, RESET), endpoint)

    def _hold(self, endpoint: Endpoint, message: Any) -> None:
        if message is _RST:
            return
        if not endpoint.held:
            endpoint.held_since = self.schedule.now
            self._holding[endpoint] = None
        endpoint.held.append(message)

    def _release(self, endpoint: Endpoint) -> None:
        """Deliver what a cut has held, unless the link is cut again."""
        if self.blocked(endpoint.peer.owner.machine.name, endpoint.owner.machine.name):
            return
        self._holding.pop(endpoint, None)
        held, endpoint.held = endpoint.held, []
        for message in held:
            self._arrive((endpoint, message))

    # --- connecting -----------------------------------------------------------------------------

    def _request(self, attempt: _Attempt) -> None:
        """A request for a connection reaches its machine, or is sent again later."""
        owner = attempt.owner
        if not attempt.pending or not owner.alive:
            return
        schedule = self.schedule
        name = attempt.command.address.rpartition(":")[0]
        machine = self.machines.get(name)
        here = owner.machine.name
        if machine is None or not machine.alive or self.cut_off(here, name):
            if attempt.again_ns == _CONNECT_AGAIN_NS:  # the first time
                schedule.at(attempt.deadline, self._expired, attempt)
            schedule.at(schedule.now + attempt.again_ns, self._request, attempt)
            attempt.again_ns *= 2
            return
        listener = self.listener(attempt.command.address)
        at_ns = schedule.now + self.delay()
        if at_ns > attempt.deadline:
            schedule.at(attempt.deadline, self._expired, attempt)
        schedule.at(at_ns, self._answered, (attempt, listener))

    def _answered(self, item: tuple[_Attempt, Running | None]) -> None:
        attempt, listener = item
        owner, label = attempt.owner, attempt.command.label
        if not attempt.pending or not owner.alive:
            return
        attempt.pending = False
        if listener is None:
            self.deliver(owner, ConnectFailed(label, REFUSED), None)
            return
        self._numbers += 2
        client = Endpoint(self._numbers, owner)
        server = Endpoint(self._numbers + 1, listener)
        client.peer, server.peer = server, client
        owner.endpoints[client.number] = client
        if listener.alive:
            listener.endpoints[server.number] = server
        else:
            server.open = False
        self.send(client, _OPEN)
        self.deliver(owner, Connected(label, client.number), client)

    def _expired(self, attempt: _Attempt) -> None:
        if attempt.pending and attempt.owner.alive:
            attempt.pending = False
            self.deliver(attempt.owner, ConnectFailed(attempt.command.label, TIMED_OUT), None)
