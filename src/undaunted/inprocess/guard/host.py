"""Runs the controller of a job, for guards in other processes, on other nodes, and in this one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from undaunted.base.timers import Timers
from undaunted.coordinator.protocol import Aside
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core.controller import Controller
from undaunted.inprocess.core.links import Links, reconnect_grace_s
from undaunted.inprocess.core.messages import Enter, Resume
from undaunted.inprocess.guard import links
from undaunted.inprocess.guard.links import Bye, Lease
from undaunted.inprocess.guard.story import Story

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.inprocess.core.messages import FromGuard, ToRank
    from undaunted.inprocess.guard.service import GuardService

    Wire: TypeAlias = "Connection | LocalConnection"

# Within this time a silent node has noticed that it is cut off.
_NODE_NOTICES_S = 10.0


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
    ) -> None:
        """Serve from now on.

        Args:
            notes: called with the number of a round and the number of ranks; returns the function
                that gets the notes of that round for the journal.
            say: called with lines about messages that cannot be sent, and about bugs.
            silence_s: a guard that sends nothing for this long is unreachable, seconds; None =
                silence is noticed elsewhere.
        """
        self.seen: set[int] = set()
        self._notes = notes
        self._say = say
        self._silence_s = silence_s
        self._unreachable_s = silence_s or 0.0  # see `Limits.unreachable_s`
        self._round = -1
        self._controller: Story[Controller] | None = None  # of that round
        self._note: Callable[[c.Note], None]
        self._timers = Timers()
        self._guards: dict[Wire, _Guard] = {}
        self._links = Links[_Guard]()
        self._broken: set[_Guard] = set()  # guards that may still come back
        self._last: tuple[ToRank | None, msgspec.Raw] = (None, msgspec.Raw())
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

    def opened(self, connection: Wire) -> None:
        """A guard has connected."""
        self._add(connection)

    def received(self, connection: Wire, message: Any) -> None:
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

    def closed(self, connection: Wire, reason: str, *, silent: bool | None = None) -> None:
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
            self._give_up(guard, guard.gone)
        else:
            self._broken.add(guard)
            in_order = connection.in_order if silent is None else not silent
            grace_s = reconnect_grace_s(
                self._unreachable_s, closed_by_peer=in_order, announced_return=guard.back
            )
            text = f"{guard.loss}: {reason}"
            self._timers.set(f"link {guard.number}", grace_s, partial(self._give_up, guard, text))
        self._changed.set()

    def _add(self, connection: Wire) -> _Guard:
        # By the order in which they came: what an older one says may arrive after a later one.
        guard = _Guard(connection, connection.number, self._silence_s)
        self._guards[connection] = guard
        return guard

    def _give_up(self, guard: _Guard, text: str) -> None:
        """A guard does not come back."""
        self._broken.discard(guard)
        self._changed.set()
        if job_ranks := self._links.give_up(guard):
            self._feed(c.Unreachable(job_ranks, text))

    # --- reports --------------------------------------------------------------------------------

    def _read(self, guard: _Guard, message: Aside) -> None:
        try:
            report = links.read_report(message)
        except msgspec.MsgspecError as error:
            guard.connection.close(f"what was said aside is no message: {error}")
            return
        self._heard(guard, report.round, report.message)

    def _heard(self, guard: _Guard, round: int, message: FromGuard) -> None:  # noqa: A002
        enter = message.enter if isinstance(message, Resume) else message
        if isinstance(enter, Enter) and round >= self._round:
            self._entered(round, enter)
        if round != self._round or self._controller is None:
            return
        if not self._links.hears(guard, message):
            return
        job_rank = enter.job_rank
        commands = self._controller.handle(message)
        refusals = [each.message for each in commands if isinstance(each, c.Answer)]
        for refusal in refusals:
            self._send(guard, (job_rank,), refusal)
        if isinstance(enter, Enter) and not refusals:
            self._links.came(guard, job_rank)
        if job_rank not in self.seen:
            self.seen.add(job_rank)
            self._changed.set()
        self._carry_out(commands)

    def _entered(self, round: int, enter: Enter) -> None:  # noqa: A002
        """A rank has entered a call: its round is the present one."""
        if self._silence_s is None:
            left_s = enter.limits.unreachable_s(_NODE_NOTICES_S)
            self._unreachable_s = max(self._unreachable_s, left_s)
        if self._controller is not None and round == self._round:
            return
        self._timers.cancel()
        self._links.clear()
        self._broken.clear()
        self._round = round
        self._controller = Story("controller", Controller(), self._say)
        self._note = self._notes(round, enter.world_size)

    # --- events and commands --------------------------------------------------------------------

    def _feed(self, event: c.ControllerEvent) -> None:
        if self._controller is not None:
            self._carry_out(self._controller.handle(event))

    def _carry_out(self, commands: list[c.ControllerCommand]) -> None:
        for command in commands:
            match command:
                case c.Tell(job_ranks=job_ranks, message=message):
                    for guard, ranks in self._links.groups(job_ranks).items():
                        self._send(guard, tuple(ranks), message)
                case c.SetTimer(name=name, delay_s=delay_s):
                    fired = partial(self._feed, c.TimerFired(name))
                    self._timers.set(f"controller {name}", delay_s, fired)
                case c.Note():
                    self._note(command)

    def _send(self, guard: _Guard, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """Send a message for ranks of a guard; for many guards it is encoded once."""
        if message is not self._last[0]:
            self._last = message, msgspec.Raw(links.ENCODER.encode(message))
        word = links.EncodedWord(self._round, job_ranks, self._last[1])
        if (aside := links.aside(word, self._say)) is not None:
            guard.connection.send(aside)


class _Guard:
    """The link to a guard, or to the guard of a node; see `core.links.Link`."""

    def __init__(self, connection: Wire, number: int, silence_s: float | None) -> None:
        self.number = number
        self.connection = connection
        self.gone = ""  # why it does not come back
        self.back = False  # it has said that it comes back
        self.loss = "its node is lost"
        self._silence: links.Silence | None = None
        if silence_s is not None:
            self.loss = "the connection to its guard has broken"
            if not isinstance(connection, LocalConnection):
                self._silence = links.Silence(silence_s, partial(self._silent, silence_s))

    def heard(self) -> None:
        if self._silence is not None:
            self._silence.heard()

    def end(self) -> None:
        if self._silence is not None:
            self._silence.cancel()

    def _silent(self, silence_s: float) -> None:
        self.gone = f"nothing was heard of its guard for {silence_s:.1f} s"
        self.connection.drop(self.gone)


class LocalConnection:
    """Both ends of a connection between a guard and a controller of one process.

    Delivers in later turns of the loop; see `Connection`.
    """

    in_order = True
    number = 0

    def __init__(self, host: ControllerHost, service: GuardService) -> None:
        """It is open from now on."""
        self._host = host
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(service.linked, self._report)

    def send(self, message: Aside | Lease) -> None:
        """Send the guard a message."""
        if isinstance(message, Aside):
            self._loop.call_soon(self._service.received, message)

    def close(self, _reason: str = "") -> None:
        """The guard's ranks have ended."""
        self._report(Bye())
        self._loop.call_soon(self._host.closed, self, "")

    drop = close

    def _report(self, message: Aside | Bye) -> None:
        self._loop.call_soon(self._host.received, self, message)
