"""Runs the controller of a job: for guards that connect, and for one in the same process."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from undaunted.base.timers import Timers
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core.links import patience_s
from undaunted.inprocess.core.messages import Enter, Resume
from undaunted.inprocess.guard.link_messages import Bye, Lease, Telling
from undaunted.inprocess.guard.silence import Silence

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.inprocess.core.controller import Controller
    from undaunted.inprocess.core.messages import FromGuard, ToRank
    from undaunted.inprocess.guard.uplink import Downlink

_ENCODER = msgspec.msgpack.Encoder()


class Link(Protocol):
    """A guard, as the controller's shell sees it.

    Attributes:
        number: later links have higher ones.
    """

    number: int

    def tell(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """Send something to some of its ranks."""


class ControllerHost:
    """Feeds a `Controller` and carries out its commands. Handler of a server's connections.

    Attributes:
        seen: job ranks that have said anything.
    """

    def __init__(
        self, controller: Controller, *, silence_s: float, note: Callable[[c.Note], None]
    ) -> None:
        """Serve from now on.

        Args:
            controller: the state machine; nobody else feeds it.
            silence_s: a guard that says nothing for so long is not reachable, seconds.
            note: called with what is for the journal.
        """
        self.seen: set[int] = set()
        self._controller = controller
        self._silence_s = silence_s
        self._note = note
        self._timers = Timers()
        self._guards: dict[Connection, _Guard] = {}
        self._links: dict[int, Link] = {}  # by job rank: the one it was heard over last
        self._broken: set[Link] = set()  # connections that may still come back
        self._last: tuple[ToRank | None, msgspec.Raw] = (None, msgspec.Raw())
        self._opened = 0  # how many connections there have been
        self._changed = asyncio.Event()

    def local(self) -> LocalUplink:
        """Return the uplink of a guard in this process."""
        return LocalUplink(self)

    async def deserted(self) -> None:
        """Wait until no guard is connected, and none may come back."""
        while self._guards or self._broken:
            self._changed.clear()
            await self._changed.wait()

    async def everyone_seen(self, world_size: int) -> None:
        """Wait until all ranks of the job have said something."""
        while len(self.seen) < world_size:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Release everything but the connections, which are the server's."""
        self._timers.cancel()
        for guard in self._guards.values():
            guard.silence.cancel()

    # --- what connections tell ------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """A guard is there."""
        self._opened += 1
        self._guards[connection] = _Guard(self, connection, self._silence_s, self._opened)

    def received(self, connection: Connection, message: Any) -> None:
        """A guard has said something."""
        guard = self._guards[connection]
        guard.silence.heard()
        match message:
            case Lease():
                connection.send(message)
            case Bye(back=back):
                guard.back = back
                guard.gone = "" if back else "its guard has ended"
            case _:
                self.heard(guard, message)

    def closed(self, connection: Connection, reason: str) -> None:
        """A guard is gone, or its connection only."""
        guard = self._guards.pop(connection)
        guard.silence.cancel()
        if guard.gone:
            self.left(guard, guard.gone)
        else:
            self._broken.add(guard)
            text = f"the connection to its guard has broken: {reason}"
            in_order = connection.in_order
            wait_s = patience_s(self._silence_s, in_order=in_order, back=guard.back)
            self._timers.set(f"link {id(guard)}", wait_s, partial(self.left, guard, text))
        self._changed.set()

    # --- what links tell ------------------------------------------------------------------------

    def heard(self, link: Link, message: FromGuard) -> None:
        """A guard reports something about one of its ranks."""
        job_rank = message.enter.job_rank if isinstance(message, Resume) else message.job_rank
        replaces = isinstance(message, Enter) and message.rejoin  # perhaps by way of another guard
        if link.number < self._links.get(job_rank, link).number and not replaces:
            return  # late, over a connection that was given up: it was said again since
        self._links[job_rank] = link
        if job_rank not in self.seen:
            self.seen.add(job_rank)
            self._changed.set()
        self._feed(message)

    def left(self, link: Link, text: str) -> None:
        """A guard does not come back."""
        self._broken.discard(link)
        self._changed.set()
        job_ranks = tuple(sorted(rank for rank, its in self._links.items() if its is link))
        for job_rank in job_ranks:
            del self._links[job_rank]
        if job_ranks:
            self._feed(c.Unreachable(job_ranks, text))

    # --- events and commands --------------------------------------------------------------------

    def _feed(self, event: c.ControllerEvent) -> None:
        for command in self._controller.handle(event, time.monotonic_ns()):
            match command:
                case c.Tell():
                    self._tell(command)
                case c.SetTimer(name=name, delay_s=delay_s):
                    fired = partial(self._feed, c.TimerFired(name))
                    self._timers.set(f"controller {name}", delay_s, fired)
                case c.Note():
                    self._note(command)

    def _tell(self, command: c.Tell) -> None:
        """One message to each guard."""
        groups: dict[Link, list[int]] = {}
        for job_rank in command.job_ranks:
            if (link := self._links.get(job_rank)) is not None:
                groups.setdefault(link, []).append(job_rank)
        for link, job_ranks in groups.items():
            link.tell(tuple(job_ranks), command.message)

    def encoded(self, message: ToRank) -> msgspec.Raw:
        """Return a message in the form of the wire; one to many guards is encoded once."""
        if message is not self._last[0]:
            self._last = message, msgspec.Raw(_ENCODER.encode(message))
        return self._last[1]


class _Guard:
    """A guard that is connected."""

    def __init__(
        self, host: ControllerHost, connection: Connection, silence_s: float, number: int
    ) -> None:
        self.number = number
        self.gone = ""  # why it does not come back
        self.back = False  # it has said that it does
        self.silence = Silence(silence_s, self._silent)
        self._host = host
        self._connection = connection
        self._silence_s = silence_s

    def tell(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        self._connection.send(Telling(job_ranks, self._host.encoded(message)))

    def _silent(self) -> None:
        self.gone = f"nothing was heard of its guard for {self._silence_s:.1f} s"
        self._connection.drop(self.gone)


class LocalUplink:
    """See `Uplink`: to a controller in this process. Everything is said in turns of the loop."""

    def __init__(self, host: ControllerHost) -> None:
        self.number = 0
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._downlink: Downlink | None = None

    def attach(self, downlink: Downlink) -> None:
        """See `Uplink`."""
        self._downlink = downlink
        self._loop.call_soon(downlink.up)

    def send(self, message: FromGuard) -> None:
        """See `Uplink`."""
        self._loop.call_soon(self._host.heard, self, message)

    def tell(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """See `Link`."""
        if self._downlink is not None:
            self._loop.call_soon(self._downlink.told, job_ranks, message)

    async def close(self) -> None:
        """Its ranks have ended."""
        self._loop.call_soon(self._host.left, self, "its guard has ended")
