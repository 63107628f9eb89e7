"""A simulated process: what runs it, its timers, and what waits until it can take it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from simulator.virtual.messages import TimerFired

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulator.virtual.messages import Command, Event
    from simulator.virtual.network import Endpoint


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
