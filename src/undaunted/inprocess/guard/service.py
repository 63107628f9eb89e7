"""Serves the ranks of a node, or one rank, and reports to the controller for them."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base import process
from undaunted.base.accepting import Acceptor
from undaunted.base.descriptors import receive
from undaunted.base.text import one_line
from undaunted.base.timers import Timers
from undaunted.coordinator.wire.frames import FrameDecoder, FrameError, encode
from undaunted.coordinator.wire.sockets import peer
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core.guard import RankGuard
from undaunted.inprocess.core.messages import MAX_MESSAGE_BYTES, End, Enter, FromRank
from undaunted.inprocess.core.reading import PAGE_BYTES, decode
from undaunted.inprocess.guard import links

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from undaunted.coordinator.protocol import Aside
    from undaunted.inprocess.core.messages import FromGuard, ToRank
    from undaunted.inprocess.core.reading import Reading


class GuardService:
    """Serves ranks, on one loop. Owns all their sockets.

    Args:
        say: called with lines about misbehaving ranks, and about messages that cannot be sent or
            read.
        round: the round of the ranks, where messages go aside over the connection of the node; None
            = messages go as they are.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        round: int | None = None,  # noqa: A002
    ) -> None:
        self._say = say
        self._round = round
        self._send: Callable[[Any], object] | None = None  # to the controller
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
            rank = ServedRank(sock, self)
        except OSError as error:
            sock.close()
            self._say(f"a rank cannot be served: {error}")
            self._note_idle()
            return
        self._nameless.add(rank)

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
        """Whether the call that this rank takes part in, dead or alive, has not ended."""
        rank = self._ranks.get(job_rank)
        return rank is not None and rank.in_call

    def rank(self, job_rank: int) -> ServedRank | None:
        """The last process of this rank, dead or alive; None = none has connected."""
        return self._ranks.get(job_rank)

    # --- from the controller --------------------------------------------------------------------

    def linked(self, send: Callable[[Any], object] | None) -> None:
        """``send`` sends to the controller from now on, perhaps another controller than before.

        None = there is no controller; the last messages may not have arrived.
        """
        before, self._send = self._send, send
        if before is not None:
            self._feed_all(c.LinkDown())
        if send is not None:
            self._feed_all(c.LinkUp())

    def received(self, message: Aside) -> None:
        """A message of the controller has come aside, perhaps for an earlier round."""
        try:
            told = links.read_told(message)
        except msgspec.MsgspecError as error:
            self._say(f"a message from the coordinator cannot be read: {error}")
            return
        if told.round == self._round:
            self.told(told.job_ranks, told.message)

    def told(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """A message of the controller has come for some of the ranks."""
        for job_rank in job_ranks:
            if (rank := self._ranks.get(job_rank)) is not None:
                rank.feed(message)

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
        if self._round is None:
            self._send(message)
            return
        packed = links.aside(links.RoundReport(self._round, message), self._say)
        if packed is not None:
            self._send(packed)

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
            self._say(f"user {peer(sock).user} has tried to be served")
            sock.close()

    def _short(self) -> None:
        self._say("no rank can be served for a second: there is no descriptor or memory left")


# A process that ends closes its connections a moment before the kernel says that it has ended;
# with a GPU, this may take seconds.
_ENDING_S = 0.2


class ServedRank:
    """A rank that is connected: feeds its `RankGuard` and carries out the commands.

    Owns the socket, a pidfd and a mapping of the page.

    Attributes:
        job_rank: -1 = not known yet.
        alive: neither its process nor its connection has ended, as far as is known.
        open: `close` was not called yet.
    """

    def __init__(self, sock: socket.socket, service: GuardService) -> None:
        """Serve the process that has made the other end of ``sock``.

        Raises:
            OSError: the process cannot be watched.
        """
        self.job_rank = -1
        self.alive = True
        self.open = True
        self._service = service
        self._pid = peer(sock).pid
        self._pidfd = _open(self._pid)
        self._page: PageReader | None = None
        self._guard = RankGuard()
        self._timers = Timers()
        self._loop = asyncio.get_running_loop()
        self._link = RankLink(sock, self._received, self._link_closed)
        self._loop.add_reader(self._pidfd, self._ended)

    def feed(self, event: FromRank | ToRank | c.GuardEvent) -> None:
        """Feed an event to its guard."""
        for command in self._guard.handle(event, time.monotonic_ns()):
            self._carry_out(command)

    def close(self) -> None:
        """Release everything, without any message."""
        if not self.open:
            return
        self.alive = self.open = False
        self._timers.cancel()
        self._link.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._page is not None:
            self._page.close()

    @property
    def in_call(self) -> bool:
        """Whether its call has not ended, also if only other ranks are still in it."""
        call = self._guard.call
        return call is not None and call.on

    @property
    def has_taken_part(self) -> bool:
        """Whether it was a member of an epoch of its call."""
        call = self._guard.call
        return call is not None and call.record is not None

    @property
    def killed(self) -> str:
        """Why its guard has ended it, as it made no progress; "" = it has not."""
        return self._guard.killed

    # --- events ---------------------------------------------------------------------------------

    def _received(self, message: FromRank) -> None:
        if self._page is None and not self._begin(message):
            self._lost("it has not begun with its page and the name of a call")
        elif message.job_rank != self.job_rank:
            self._lost(f"it has spoken as rank {message.job_rank}")
        else:
            self.feed(message)

    def _link_closed(self, reason: str) -> None:
        """Its connection has ended, mostly because its process ends, which the kernel says next."""
        if self.alive:
            self._timers.set("closed", _ENDING_S, partial(self._lost, reason))

    def _ended(self) -> None:
        """Its process has ended. Messages that it has sent before are still read."""
        self._link.drain()
        self._lost(f"its process (pid {self._pid}) has ended")

    def _lost(self, text: str) -> None:
        if not self.alive:
            return
        self.alive = False
        reading = self._page.read() if self._page is not None else None
        self._loop.remove_reader(self._pidfd)
        self._link.close()
        self._timers.cancel()
        self.feed(c.ProcessEnded(text, reading))

    def _begin(self, message: FromRank) -> bool:
        """Take the page that comes with the first message."""
        fd = self._link.take_page()
        if fd < 0:
            return False
        try:
            self._page = PageReader(fd)
        except (OSError, ValueError):
            return False
        if not isinstance(message, Enter):
            return False
        self.job_rank = message.job_rank
        if self._service.entered(self):
            return True
        text = f"another process that lives is rank {message.job_rank} of this job"
        self._link.send(End(message.call, "mismatch", text))
        return False

    # --- commands -------------------------------------------------------------------------------

    def _carry_out(self, command: c.GuardCommand) -> None:
        match command:
            case c.Report(message=message):
                self._service.report(message)
            case c.Pass(message=message):
                self._link.send(message)
            case c.LookIn(delay_s=delay_s):
                self._timers.set("look", delay_s, self._look)
            case c.Signal(numbers=numbers):
                self._signal(numbers)
            case c.SetTimer(name=name, delay_s=delay_s):
                fired = partial(self.feed, c.TimerFired(name))
                self._timers.set(f"guard {name}", delay_s, fired)
            case c.Finish():
                self._service.finished(self)

    def _look(self) -> None:
        if self._page is not None:
            self.feed(c.Look(self._page.read(), process.state(self._pid)))

    def _signal(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            process.signal_pidfd(self._pidfd, number)


def _open(pid: int) -> int:
    pidfd = process.open_pidfd(pid)
    if pidfd is None:
        raise ProcessLookupError(f"the rank's process (pid {pid}) has ended already")
    return pidfd


# Most bytes that may wait for a rank that does not read, beside the last message.
_WAITING_BYTES = MAX_MESSAGE_BYTES
_READ_BYTES = 64 * 1024
_FDS = 4  # descriptors that one read may bring; all but the last are closed

_DECODER = msgspec.msgpack.Decoder(FromRank)
_ENCODER = msgspec.msgpack.Encoder()


class RankLink:
    """The guard's end of the link to a rank: messages in, the page's descriptor with them, and out.

    Owns a connected Unix stream socket. Used on one loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        received: Callable[[FromRank], None],
        closed: Callable[[str], None],
    ) -> None:
        """Begin to read.

        Args:
            sock: to the rank.
            received: called with every message; must not block.
            closed: called once, with the reason, when no message can come any more; not after
                `close`.
        """
        self._sock = sock
        self._received = received
        self._closed = closed
        self._decoder = FrameDecoder(MAX_MESSAGE_BYTES)
        self._waiting = bytearray()
        self._page = -1
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def take_page(self) -> int:
        """Return the last descriptor that has come, which is the caller's now; -1 = none."""
        page, self._page = self._page, -1
        return page

    def send(self, message: ToRank) -> None:
        """Send a message soon. The link ends if too many bytes wait, as the rank does not read."""
        if self._sock.fileno() < 0:
            return
        if len(self._waiting) > _WAITING_BYTES:
            self._end(f"it does not read: {len(self._waiting)} bytes wait for it")
            return
        idle = not self._waiting
        self._waiting += encode(_ENCODER.encode(message))
        if idle:
            self._writable()

    def close(self) -> None:
        """Release everything; ``closed`` is not called."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        if (page := self.take_page()) >= 0:
            os.close(page)

    def _end(self, reason: str) -> None:
        if self._sock.fileno() >= 0:
            self.close()
            self._closed(reason)

    def drain(self) -> None:
        """Read everything that a process has sent before its end."""
        while self._sock.fileno() >= 0 and self._read():
            pass

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Read once; return whether there was anything."""
        try:
            data, fds, _ = receive(self._sock, _READ_BYTES, _FDS)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(f"its connection has broken: {error.strerror}")
            return False
        self._keep(fds)
        if not data:
            self._end("it has closed its connection")
            return False
        self._decoder.feed(data)
        self._take_frames()
        return True

    def _keep(self, fds: list[int]) -> None:
        for fd in fds:
            if self._page >= 0:
                os.close(self._page)
            self._page = fd

    def _take_frames(self) -> None:
        try:
            while self._sock.fileno() >= 0 and (frame := self._decoder.next()) is not None:
                self._received(_DECODER.decode(frame))
        except FrameError as error:
            self._end(f"it has sent {error}")
        except (msgspec.MsgspecError, RecursionError) as error:
            self._end(one_line(f"what it has sent is no message: {error}", longest=200))

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._waiting)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # The end of the rank is noticed after its last messages were read.
            self._waiting.clear()
            self._loop.remove_writer(self._sock)
            return
        del self._waiting[:sent]
        if self._waiting:
            self._loop.add_writer(self._sock, self._writable)
        else:
            self._loop.remove_writer(self._sock)


# Python has no names for these before 3.13 (linux/fcntl.h).
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2


class PageReader:
    """A rank's page, mapped for reading; to be closed."""

    def __init__(self, fd: int) -> None:
        """Map the memory of ``fd``, which is closed in any case.

        Raises:
            OSError: it cannot be mapped, or is no memory that stays as long as it is: reading it
                could end this process.
        """
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
            if not seals & _F_SEAL_SHRINK or os.fstat(fd).st_size < PAGE_BYTES:
                raise OSError("it is no sealed memory of a page's size")
            self._map = mmap.mmap(fd, PAGE_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(fd)

    def read(self) -> Reading | None:
        """Return a reading, None = it is no page of this version."""
        return decode(self._map[:PAGE_BYTES])

    def close(self) -> None:
        """Give the mapping back."""
        self._map.close()
