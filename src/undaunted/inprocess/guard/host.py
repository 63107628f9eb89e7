"""Runs the controller of a job, for guards in other processes, on other nodes, and in this one."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from undaunted.base.timers import Timers
from undaunted.coordinator.protocol import Aside
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core.controller import Controller
from undaunted.inprocess.core.messages import Enter, Resume
from undaunted.inprocess.guard import links
from undaunted.inprocess.guard.links import Bye, EncodedRoundTold, EncodedTold, Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.inprocess.core.messages import FromGuard, ToRank
    from undaunted.inprocess.guard.service import GuardService

_ENCODER = msgspec.msgpack.Encoder()
# Within this time a silent node has noticed that it is cut off; its ranks leave the call
# `Limits.heartbeat_timeout` after that.
_MARGIN_S = 10.0


class Link(Protocol):
    """The host's link to a guard.

    Attributes:
        number: later links have higher numbers.
    """

    number: int

    def tell(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """Send a message for some of its ranks."""


class ControllerHost:
    """Feeds a `Controller`, one for each round, and carries out its commands.

    Handler of the connections of guards. Beside a leader (see `BesideLeader`), the connections are
    those of nodes, and the leader notices their silence.

    Attributes:
        seen: job ranks that have sent a message.
    """

    def __init__(
        self,
        notes: Callable[[int, int], Callable[[c.Note], None]],
        say: Callable[[str], None],
        *,
        silence_s: float | None = None,
        make: Callable[[], Controller] = Controller,
    ) -> None:
        """Serve from now on.

        Args:
            notes: called with the number of a round and the number of ranks; returns the function
                that gets the notes of that round for the journal.
            say: called with lines about messages that cannot be sent.
            silence_s: a guard that sends nothing for this long is unreachable, seconds; None =
                silence is noticed elsewhere.
            make: makes the state machine of a round.
        """
        self.seen: set[int] = set()
        self._notes = notes
        self._say = say
        self._silence_s = silence_s
        self._unreachable_s = silence_s or 0.0  # by then a living guard has ended its ranks' calls
        self._make = make
        self._round = -1
        self._controller: Controller | None = None  # of that round
        self._note: Callable[[c.Note], None]
        self._timers = Timers()
        self._guards: dict[Connection, _Guard] = {}
        self._links: dict[int, Link] = {}  # by job rank: the link of its last message
        self._broken: set[Link] = set()  # guards that may still come back
        self._last: tuple[ToRank | None, msgspec.Raw] = (None, msgspec.Raw())
        self._opened = 0  # how many connections there have been
        self._closed = False
        self._changed = asyncio.Event()

    async def deserted(self) -> None:
        """Wait until no guard is connected, and none may come back."""
        while self._guards or self._broken:
            self._changed.clear()
            await self._changed.wait()

    async def everyone_seen(self, world_size: int) -> None:
        """Wait until all ranks of the job have sent a message."""
        while len(self.seen) < world_size:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Release everything but the connections, which are the server's; drop later messages."""
        self._closed = True
        self._timers.cancel()
        for guard in self._guards.values():
            guard.end()
        self._guards.clear()
        self._controller = None

    # --- connections ----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """A guard has connected."""
        self._add(connection)

    def received(self, connection: Connection, message: Any) -> None:
        """A guard has sent a message."""
        if self._closed:
            return
        guard = self._guards.get(connection) or self._add(connection)
        guard.heard()
        match message:
            case Lease():
                connection.send(message)
            case Bye(back=back):
                guard.back = back
                guard.gone = "" if back else "its guard has ended"
            case Aside():
                self._read(guard, message)
            case _:
                self.heard(guard, 0, message)

    def closed(self, connection: Connection, reason: str, *, silent: bool | None = None) -> None:
        """A connection has ended; its guard may have ended too, or not even notice.

        Args:
            connection: that has ended.
            reason: for people.
            silent: the leader or the network has ended it; None = see `Connection.in_order`.
        """
        guard = self._guards.pop(connection, None)
        if guard is None:
            return
        guard.end()
        if guard.gone:
            self.left(guard, guard.gone)
        else:
            self._broken.add(guard)
            in_order = connection.in_order if silent is None else not silent
            wait_s = links.patience_s(self._unreachable_s, in_order=in_order, back=guard.back)
            text = f"{guard.loss}: {reason}"
            self._timers.set(f"link {guard.number}", wait_s, partial(self.left, guard, text))
        self._changed.set()

    def _add(self, connection: Connection) -> _Guard:
        self._opened += 1
        guard = self._guards[connection] = _Guard(self, connection, self._opened, self._silence_s)
        return guard

    def _read(self, guard: _Guard, message: Aside) -> None:
        try:
            report = links.read_report(message)
        except msgspec.MsgspecError as error:
            guard.connection.close(f"what was said aside is no message: {error}")
            return
        self.heard(guard, report.round, report.message)

    # --- links ----------------------------------------------------------------------------------

    def heard(self, link: Link, round: int, message: FromGuard) -> None:  # noqa: A002
        """A guard has reported about one of its ranks, in a round."""
        if self._closed:
            return
        if isinstance(message, Enter | Resume):
            enter = message.enter if isinstance(message, Resume) else message
            job_rank, replaces = enter.job_rank, enter is message and enter.rejoin
            if round >= self._round:
                self._entered(round, enter)
        else:
            job_rank, replaces = message.job_rank, False
        if round != self._round or self._controller is None:
            return
        if link.number < self._links.get(job_rank, link).number and not replaces:
            return  # late, over a connection that was given up: the guard has repeated it since
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

    def _entered(self, round: int, enter: Enter) -> None:  # noqa: A002
        """A rank has entered a call: its round is the present one."""
        if self._silence_s is None:
            left_s = enter.limits.heartbeat_timeout + _MARGIN_S
            self._unreachable_s = max(self._unreachable_s, left_s)
        if self._controller is not None and round == self._round:
            return
        self._timers.cancel()
        self._links.clear()
        self._broken.clear()
        self._round = round
        self._controller = self._make()
        self._note = self._notes(round, enter.world_size)

    # --- events and commands --------------------------------------------------------------------

    def _feed(self, event: c.ControllerEvent) -> None:
        if self._controller is None:
            return
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
        """Send a message to ranks: once to each guard."""
        groups: dict[Link, list[int]] = {}
        for job_rank in command.job_ranks:
            if (link := self._links.get(job_rank)) is not None:
                groups.setdefault(link, []).append(job_rank)
        for link, job_ranks in groups.items():
            link.tell(tuple(job_ranks), command.message)

    def packed(self, job_ranks: tuple[int, ...], message: ToRank) -> EncodedTold | Aside | None:
        """Return a message in the form for a connection; for many guards it is encoded once."""
        if message is not self._last[0]:
            self._last = message, msgspec.Raw(_ENCODER.encode(message))
        encoded = self._last[1]
        if self._silence_s is not None:
            return EncodedTold(job_ranks, encoded)
        return links.aside(EncodedRoundTold(self._round, job_ranks, encoded), self._say)


class _Guard:
    """The link to a guard, or to the guard of a node, over a connection; see `Link`."""

    def __init__(
        self, host: ControllerHost, connection: Connection, number: int, silence_s: float | None
    ) -> None:
        self.number = number
        self.connection = connection
        self.gone = ""  # why it does not come back
        self.back = False  # it has said that it comes back
        self.loss = "its node is lost"
        self._host = host
        self._silence: links.Silence | None = None
        if silence_s is not None:
            self.loss = "the connection to its guard has broken"
            self._silence = links.Silence(silence_s, partial(self._silent, silence_s))

    def tell(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        packed = self._host.packed(job_ranks, message)
        if packed is not None:
            self.connection.send(packed)

    def heard(self) -> None:
        if self._silence is not None:
            self._silence.heard()

    def end(self) -> None:
        if self._silence is not None:
            self._silence.cancel()

    def _silent(self, silence_s: float) -> None:
        self.gone = f"nothing was heard of its guard for {silence_s:.1f} s"
        self.connection.drop(self.gone)


class LocalLink:
    """The link to a guard in the same process; see `Link`. Delivers in later turns of the loop."""

    def __init__(
        self,
        host: ControllerHost,
        service: GuardService,
        round: int = 0,  # noqa: A002
    ) -> None:
        """The link is up from now on."""
        self.number = 0
        self._host = host
        self._service = service
        self._round = round
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(service.linked, self.send)

    def send(self, message: FromGuard) -> None:
        """Send the controller a message."""
        self._loop.call_soon(self._host.heard, self, self._round, message)

    def tell(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """See `Link`."""
        self._loop.call_soon(self._service.told, job_ranks, message)

    def close(self) -> None:
        """The guard's ranks have ended."""
        self._loop.call_soon(self._host.left, self, "its guard has ended")
