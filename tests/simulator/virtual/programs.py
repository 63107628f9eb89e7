"""Programs for the tests of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.virtual import messages as m
from simulator.virtual.engine import Simulation
from simulator.virtual.network import NetworkRules
from simulator.virtual.schedule import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

S = NS_PER_S
# Every message takes a millisecond, none is lost.
EVEN = NetworkRules(min_delay_ns=1_000_000, max_delay_ns=1_000_000, loss=0)


class Program:
    """Remembers what it was told; ``react`` says what it does about it."""

    def __init__(self, react: Callable[[m.Event], Iterable[m.Command]] = lambda _event: ()) -> None:
        self.react = react
        self.seen: list[tuple[int, m.Event]] = []

    def handle(self, event: m.Event, now: int) -> Iterable[m.Command]:
        self.seen.append((now, event))
        return self.react(event)

    def got(self, kind: type) -> list[m.Event]:
        return [event for _, event in self.seen if isinstance(event, kind)]

    def messages(self) -> list[object]:
        return [event.message for event in self.got(m.Received)]  # type: ignore[attr-defined]


def server() -> Program:
    return Program(lambda e: [m.Listen("b:1")] if isinstance(e, m.Started) else [])


def client(*words: object, timeout_s: int = 5) -> Program:
    """Connects to the server, says ``words``, then whatever it is told to."""
    connection = 0

    def react(event: m.Event) -> Iterable[m.Command]:
        nonlocal connection
        match event:
            case m.Started():
                return [m.Connect("up", "b:1", timeout_s * S)]
            case m.Connected():
                connection = event.connection
                return [m.Send(connection, word) for word in words]
            case m.Told():
                return [m.Send(connection, event.what)]
        return []

    return Program(react)


def pair(*words: object, rules: NetworkRules = EVEN, seed: int = 1, timeout_s: int = 5):
    """A client on machine ``a`` that connects to a server on ``b``, which is up already."""
    simulation = Simulation(seed, rules=rules)
    simulation.boot("a")
    simulation.boot("b")
    serving, calling = server(), client(*words, timeout_s=timeout_s)
    simulation.start("server", serving, "b")
    simulation.run(0)
    simulation.start("client", calling, "a")
    return simulation, calling, serving
