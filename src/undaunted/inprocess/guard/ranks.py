"""One rank: its channel, process and page, and what its `RankGuard` wants done with them."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from undaunted.base import process
from undaunted.base.timers import Timers
from undaunted.coordinator.wire.sockets import peer
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core.guard import RankGuard
from undaunted.inprocess.core.messages import End, Enter
from undaunted.inprocess.guard.channel import Channel
from undaunted.inprocess.guard.page import Page

if TYPE_CHECKING:
    import socket

    from undaunted.inprocess.core.messages import FromGuard, FromRank, ToRank


# A process that ends closes its connections a moment before the kernel says that it has ended;
# with a GPU, this may take seconds.
_ENDING_S = 0.2


class Owner(Protocol):
    """Who serves ranks."""

    def entered(self, rank: ServedRank) -> bool:
        """It has said its job rank; return whether it may have it."""

    def report(self, message: FromGuard) -> None:
        """For the controller."""

    def finished(self, rank: ServedRank) -> None:
        """It has ended, and nothing of it is left to be said."""


class ServedRank:
    """A rank that is connected. Owns the socket, a pidfd and a mapping of the page.

    Attributes:
        job_rank: -1 = it has not said it yet.
        alive: neither its process nor its connection has ended, as far as is known.
        open: it was not closed yet.
    """

    def __init__(self, sock: socket.socket, owner: Owner) -> None:
        """Serve who has made the other end of ``sock``.

        Raises:
            OSError: its process cannot be watched.
        """
        self.job_rank = -1
        self.alive = True
        self.open = True
        self._owner = owner
        self._pid = peer(sock).pid
        self._pidfd = _open(self._pid)
        self._page: Page | None = None
        self._guard = RankGuard()
        self._timers = Timers()
        self._loop = asyncio.get_running_loop()
        self._channel = Channel(sock, self)
        self._loop.add_reader(self._pidfd, self._ended)

    def feed(self, event: FromRank | ToRank | c.GuardEvent) -> None:
        """Have something happen to it."""
        for command in self._guard.handle(event, time.monotonic_ns()):
            self._carry_out(command)

    def close(self) -> None:
        """Release everything; nobody is told."""
        if not self.open:
            return
        self.alive = self.open = False
        self._timers.cancel()
        self._channel.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._page is not None:
            self._page.close()

    @property
    def in_call(self) -> bool:
        """Whether its call is on, for itself or, where it is lost or has left, for others."""
        call = self._guard.call
        return call is not None and call.on

    @property
    def has_taken_part(self) -> bool:
        """Whether it was a member of an epoch of its call."""
        call = self._guard.call
        return call is not None and call.record is not None

    # --- what happens ---------------------------------------------------------------------------

    def received(self, message: FromRank) -> None:
        """It has said something."""
        if self._page is None and not self._begin(message):
            self._lost("it has not begun with its page and the name of a call")
        elif message.job_rank != self.job_rank:
            self._lost(f"it has spoken as rank {message.job_rank}")
        else:
            self.feed(message)

    def closed(self, reason: str) -> None:
        """Its connection is gone; mostly because its process is, of which the kernel tells next."""
        if self.alive:
            self._timers.set("closed", _ENDING_S, partial(self._lost, reason))

    def _ended(self) -> None:
        """Its process has ended. What it has said before counts."""
        self._channel.drain()
        self._lost(f"its process (pid {self._pid}) has ended")

    def _lost(self, text: str) -> None:
        if not self.alive:
            return
        self.alive = False
        reading = self._page.read() if self._page is not None else None
        self._loop.remove_reader(self._pidfd)
        self._channel.close()
        self._timers.cancel()
        self.feed(c.ProcessEnded(text, reading))

    def _begin(self, message: FromRank) -> bool:
        """Take the page that comes with the first message."""
        fd = self._channel.take_page()
        if fd < 0:
            return False
        try:
            self._page = Page(fd)
        except (OSError, ValueError):
            return False
        if not isinstance(message, Enter):
            return False
        self.job_rank = message.job_rank
        if self._owner.entered(self):
            return True
        text = f"another process that lives is rank {message.job_rank} of this job"
        self._channel.send(End(message.call, "mismatch", text))
        return False

    # --- commands -------------------------------------------------------------------------------

    def _carry_out(self, command: c.GuardCommand) -> None:
        match command:
            case c.Report(message=message):
                self._owner.report(message)
            case c.Pass(message=message):
                self._channel.send(message)
            case c.LookIn(delay_s=delay_s):
                self._timers.set("look", delay_s, self._look)
            case c.Signal(numbers=numbers):
                self._signal(numbers)
            case c.SetTimer(name=name, delay_s=delay_s):
                fired = partial(self.feed, c.TimerFired(name))
                self._timers.set(f"guard {name}", delay_s, fired)
            case c.Finish():
                self._owner.finished(self)

    def _look(self) -> None:
        if self._page is not None:
            self.feed(c.Look(self._page.read()))

    def _signal(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            process.signal_pidfd(self._pidfd, number)


def _open(pid: int) -> int:
    pidfd = process.open_pidfd(pid)
    if pidfd is None:
        raise ProcessLookupError(f"the rank's process (pid {pid}) has ended already")
    return pidfd
