"""The controller in the process of a guard, with its links to the other guards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from simulator.inprocess.setup import UNREACHABLE_S
from simulator.virtual import messages as s
from simulator.virtual.network import END_OF_FILE
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.controller import Controller
from undaunted.inprocess.guard.links import Bye, patience_s

if TYPE_CHECKING:
    from simulator.inprocess.cluster import Cluster

_NS = 1_000_000_000
_HERE = 0


class Lease(msgspec.Struct, frozen=True):
    """A guard is there; answered with the same."""


class Told(msgspec.Struct, frozen=True):
    """To a guard: for some of its ranks."""

    job_ranks: tuple[int, ...]
    message: m.ToRank


class Host:
    """See the module's documentation.

    Links are numbers of connections, in the order in which they were
    made; 0 = the guard here.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.controller = Controller()
        self._cluster = cluster
        self._links: dict[int, int] = {}  # by job rank: over which it was heard last
        self._heard: dict[int, int] = {}  # by link
        self._posted: dict[int, m.FromGuard] = {}
        self._posts = 0
        self._back: set[int] = set()  # links whose guards have said that they come back

    def post(self, message: m.FromGuard) -> int:
        """Keep what the guard here reports until its turn comes; return its number."""
        self._posts += 1
        self._posted[self._posts] = message
        return self._posts

    def knows(self, connection: int) -> bool:
        """Whether a guard has used this connection."""
        return connection in self._heard

    def received(self, link: int, message: object, now: int) -> list[s.Command | Told]:
        """A guard says something."""
        first = link not in self._heard
        self._heard[link] = now
        commands: list[s.Command | Told] = []
        if first and link != _HERE:
            commands.append(_timer(f"silent {link}"))
        if isinstance(message, Lease):
            return [*commands, s.Send(link, message)]
        if isinstance(message, Bye):
            self._back.add(link)
            return commands
        assert isinstance(message, m.FromGuard)
        job_rank = message.enter.job_rank if isinstance(message, m.Resume) else message.job_rank
        if link < self._links.get(job_rank, link):
            return commands  # late, over a connection that was given up: it was said again since
        self._links[job_rank] = link
        return commands + self._feed(message, now)

    def closed(self, link: int, reason: str) -> list[s.Command]:
        """A connection is gone; its guard may come back over another one."""
        if self._heard.pop(link, None) is None:
            return []
        in_order = reason == END_OF_FILE
        wait_s = patience_s(UNREACHABLE_S, in_order=in_order, back=link in self._back)
        return [_timer(f"lost {link}", wait_s)]

    def close(self) -> list[s.Command]:
        """The controller is not here any more."""
        return [s.Close(link) for link in self._heard if link != _HERE]

    def timer(self, name: str, now: int) -> list[s.Command | Told]:
        """One of its timers has run out."""
        what, _, rest = name.partition(" ")
        match what:
            case "local":
                message = self._posted.pop(int(rest), None)
                return [] if message is None else self.received(_HERE, message, now)
            case "lost":
                return self._lost(int(rest), now)
            case "silent" if int(rest) in self._heard:
                left_ns = self._heard[int(rest)] + round(UNREACHABLE_S * _NS) - now
                if left_ns > 0:
                    return [s.SetTimer(name, left_ns)]
                del self._heard[int(rest)]
                return [s.Close(int(rest)), *self._lost(int(rest), now)]
            case "controller":
                return self._feed(c.TimerFired(rest), now)
        return []

    def _lost(self, link: int, now: int) -> list[s.Command | Told]:
        job_ranks = tuple(sorted(j for j, its in self._links.items() if its == link))
        for job_rank in job_ranks:
            del self._links[job_rank]
        return self._feed(c.Unreachable(job_ranks, "its guard is gone"), now) if job_ranks else []

    def _feed(self, event: m.FromGuard | c.ControllerEvent, now: int) -> list[s.Command | Told]:
        commands: list[s.Command | Told] = []
        for command in self.controller.handle(event, now):
            match command:
                case c.Tell(job_ranks=job_ranks, message=message):
                    commands += self._tell(job_ranks, message)
                case c.SetTimer(name=name, delay_s=delay_s):
                    commands.append(s.SetTimer(f"controller {name}", round(delay_s * _NS)))
                case c.Note():
                    self._cluster.note("note", command)
        return commands

    def _tell(self, job_ranks: tuple[int, ...], message: m.ToRank) -> list[s.Command | Told]:
        groups: dict[int, list[int]] = {}
        for job_rank in job_ranks:
            link = self._links.get(job_rank)
            if link is not None:
                groups.setdefault(link, []).append(job_rank)
        told = {link: Told(tuple(ranks), message) for link, ranks in groups.items()}
        return [each if link == _HERE else s.Send(link, each) for link, each in told.items()]


def _timer(name: str, delay_s: float = UNREACHABLE_S) -> s.Command:
    return s.SetTimer(name, round(delay_s * _NS))
