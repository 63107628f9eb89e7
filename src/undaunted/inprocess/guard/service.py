"""Serves the ranks of a node, or one rank, and reports to the controller for them."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.accepting import Acceptor
from undaunted.base.timers import Timers
from undaunted.coordinator.wire.sockets import peer
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core.guard import RankGuard
from undaunted.inprocess.core.messages import End, Enter
from undaunted.inprocess.guard import links
from undaunted.inprocess.guard.rank_process import SocketProcess
from undaunted.inprocess.guard.story import Story

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from undaunted.coordinator.protocol import Aside
    from undaunted.inprocess.core.messages import FromGuard, FromRank, ToRank
    from undaunted.inprocess.guard.rank_process import RankProcess


class GuardService:
    """Serves ranks, on one loop. Owns all their sockets.

    Args:
        say: called with lines about misbehaving ranks, about messages that cannot be sent or read,
            and about bugs.
        round: of the ranks; 0 outside of `undaunted run`.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        round: int = 0,  # noqa: A002
    ) -> None:
        self.say = say
        self._round = round
        self._send: Callable[[Aside], object] | None = None  # to the controller
        self._ranks: dict[int, ServedRank] = {}
        self._nameless: set[ServedRank] = set()  # connected, but without a job rank yet
        self._acceptor: Acceptor | None = None
        self._idle = asyncio.Event()

    def listen(self, listener: socket.socket) -> None:
        """Serve ranks of this user that connect to ``listener``, which is ours from now on."""
        self._acceptor = Acceptor(listener, self._take, self._short)

    def serve(self, sock: socket.socket) -> None:
        """Serve a rank that is connected; ``sock`` is ours from now on."""
        try:
            process = SocketProcess(sock)
        except OSError as error:
            sock.close()
            self.say(f"a rank cannot be served: {error}")
            self._note_idle()
            return
        self.watch(process)

    def watch(self, process: RankProcess) -> None:
        """Serve the rank of a process, which is ours from now on."""
        self._nameless.add(ServedRank(process, self))

    async def idle(self) -> None:
        """Wait until the first rank was served, and no rank is served any more."""
        await self._idle.wait()

    def close(self) -> None:
        """Release everything, without a message to ranks or controller."""
        if self._acceptor is not None:
            self._acceptor.close()
        for rank in (*self._ranks.values(), *self._nameless):
            rank.close()

    def in_call(self, job_rank: int) -> bool:
        """Return whether the call that this rank takes part in, dead or alive, has not ended."""
        rank = self._ranks.get(job_rank)
        return rank is not None and rank.in_call

    def rank(self, job_rank: int) -> ServedRank | None:
        """The last process of this rank, dead or alive; None = none has connected."""
        return self._ranks.get(job_rank)

    # --- from the controller --------------------------------------------------------------------

    def linked(self, send: Callable[[Aside], object] | None) -> None:
        """``send`` sends to the controller from now on, perhaps another controller than before.

        None = there is no controller; the last messages may not have arrived.
        """
        before, self._send = self._send, send
        if before is not None:
            self._feed_all(c.LinkDown())
        if send is not None:
            self._feed_all(c.LinkUp())

    def received(self, message: Aside) -> None:
        """A message of the controller has come for some of the ranks, perhaps of another round."""
        try:
            word = links.read_word(message)
        except msgspec.MsgspecError as error:
            self.say(f"a message from the controller cannot be read: {error}")
            return
        if word.round != self._round:
            return
        for job_rank in word.job_ranks:
            if (rank := self._ranks.get(job_rank)) is not None:
                rank.feed(word.message)

    def _feed_all(self, event: c.LinkUp | c.LinkDown) -> None:
        for rank in list(self._ranks.values()):
            rank.feed(event)

    # --- from ranks -----------------------------------------------------------------------------

    def entered(self, rank: ServedRank) -> bool:
        """Register a rank by its job rank; False = another process that lives has this job rank."""
        before = self._ranks.get(rank.job_rank)
        if before is not None and before.alive:
            return False
        if before is not None:
            before.close()
        self._nameless.discard(rank)
        self._ranks[rank.job_rank] = rank
        if self._send is not None:
            rank.feed(c.LinkUp())
        return True

    def report(self, message: FromGuard) -> None:
        """Send the controller a report of a rank's guard; dropped while there is no controller."""
        if self._send is None:
            return
        aside = links.aside(links.Report(self._round, message), self.say)
        if aside is not None:
            self._send(aside)

    def finished(self, rank: ServedRank) -> None:
        """A rank has ended. Its guard is kept: a new controller may have to hear of the end."""
        rank.close()
        self._nameless.discard(rank)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._nameless and not any(rank.open for rank in self._ranks.values()):
            self._idle.set()

    # --- accepting ------------------------------------------------------------------------------

    def _take(self, sock: socket.socket) -> None:
        if peer(sock).user == os.geteuid():
            self.serve(sock)
        else:
            self.say(f"user {peer(sock).user} has tried to be served")
            sock.close()

    def _short(self) -> None:
        self.say("no rank can be served for a second: there is no descriptor or memory left")


# A process that ends closes its connections a moment before the kernel says that it has ended;
# with a GPU, this may take seconds.
_ENDING_S = 0.2


class ServedRank:
    """A rank that is connected: feeds its `RankGuard` and carries out the commands.

    Owns its process's link.

    Attributes:
        job_rank: -1 = not known yet.
        alive: neither its process nor its connection has ended, as far as is known.
        open: `close` was not called yet.
    """

    def __init__(self, process: RankProcess, service: GuardService) -> None:
        """Serve a process that is connected."""
        self.job_rank = -1
        self.alive = True
        self.open = True
        self._service = service
        self._process = process
        self._guard = Story("guard", RankGuard(), service.say)
        self._timers = Timers()
        process.serve(self)

    def feed(self, event: FromRank | ToRank | c.GuardEvent) -> None:
        """Feed an event to its guard."""
        for command in self._guard.handle(event):
            self._carry_out(command)

    def close(self) -> None:
        """Release everything, without any message."""
        self.alive = self.open = False
        self._timers.cancel()
        self._process.close()

    @property
    def in_call(self) -> bool:
        """Return whether its call has not ended, also if only other ranks are still in it."""
        call = self._guard.core.call
        return call is not None and call.on

    @property
    def has_taken_part(self) -> bool:
        """Return whether it was a member of an epoch of its call."""
        call = self._guard.core.call
        return call is not None and call.record is not None

    @property
    def killed(self) -> str:
        """The reason for which the guard has ended the process, "" = it has not."""
        return self._guard.core.killed

    # --- of its process -------------------------------------------------------------------------

    def received(self, message: FromRank) -> None:
        """It has sent a message."""
        if self.job_rank < 0 and not self._begin(message):
            self._lose("it has not begun with its page and the name of a call")
        elif message.job_rank != self.job_rank:
            self._lose(f"it has spoken as rank {message.job_rank}")
        else:
            self.feed(message)

    def closed(self, reason: str) -> None:
        """Its connection has ended, mostly because its process ends, which the kernel says next."""
        if self.alive:
            self._timers.set("closed", _ENDING_S, partial(self._lose, reason))

    def ended(self) -> None:
        """It has ended; what it has sent before was received."""
        self._lose(f"its process (pid {self._process.pid}) has ended")

    def _lose(self, text: str) -> None:
        if not self.alive:
            return
        self.alive = False
        reading = self._process.read()
        self._process.close()
        self._timers.cancel()
        self.feed(c.ProcessEnded(text, reading))

    def _begin(self, message: FromRank) -> bool:
        if not self._process.take_page() or not isinstance(message, Enter):
            return False
        self.job_rank = message.job_rank
        if self._service.entered(self):
            return True
        text = f"another process that lives is rank {message.job_rank} of this job"
        self._process.send(End(message.call, "mismatch", text))
        return False

    # --- commands -------------------------------------------------------------------------------

    def _carry_out(self, command: c.GuardCommand) -> None:
        match command:
            case c.Report(message=message):
                self._service.report(message)
            case c.Pass(message=message):
                self._process.send(message)
            case c.LookIn(delay_s=delay_s):
                self._timers.set("look", delay_s, self._look)
            case c.Signal(numbers=numbers):
                self._process.signal(numbers)
            case c.SetTimer(name=name, delay_s=delay_s):
                fired = partial(self.feed, c.TimerFired(name))
                self._timers.set(f"guard {name}", delay_s, fired)
            case c.Finish():
                self._service.finished(self)

    def _look(self) -> None:
        self.feed(c.Look(self._process.read(), self._process.state()))
