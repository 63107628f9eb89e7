"""What tests of guards share: a rank's end of a link, services and controllers that remember."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.memory import create_memfd
from undaunted.coordinator import protocol as p
from undaunted.coordinator.wire import frames
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core import reading
from undaunted.inprocess.guard import links

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.core.commands import ControllerCommand, ControllerEvent

LIMITS = m.Limits(soft_timeout=50.0, hard_timeout=60.0, heartbeat_timeout=30.0)


def enter(job_rank: int = 0, call: int = 0, **changes: Any) -> m.Enter:
    fields = {"limits": LIMITS, "world_size": 2, "pid": os.getpid(), "node": "here", **changes}
    return m.Enter(call=call, job_rank=job_rank, **fields)


def join(job_rank: int = 0, epoch: int = 0) -> m.Join:
    return m.Join(0, job_rank, epoch, rank=job_rank, world_size=2)


def record(epoch: int = 0, *members: int) -> m.Record:
    return m.Record(0, epoch, members or (0, 1), world_size=2)


class Changing:
    """Something that tests wait for."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def word(job_ranks: tuple[int, ...], message: m.ToRank, number: int = 0) -> p.Aside:
    """What a guard gets when the controller says this to its ranks, in a round."""
    return p.Aside(data=msgspec.msgpack.encode(links.Word(number, job_ranks, message)))


def report(message: m.FromGuard, number: int = 0) -> p.Aside:
    """What the controller gets when a guard reports this, in a round."""
    return p.Aside(data=msgspec.msgpack.encode(links.Report(number, message)))


class Said(Changing):
    """What a service reports to the controller."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[m.FromGuard] = []

    def send(self, aside: p.Aside) -> None:
        self.said.append(links.read_report(aside).message)
        self.changed()


class Served(Changing):
    """A service that only listens, at the other end of a link to the controller."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.number = number
        self._send: Callable[[Any], object] = [].append

    def linked(self, send: Callable[[Any], object] | None) -> None:
        self._note("down" if send is None else "up")
        self._send = send or [].append

    def send(self, message: m.FromGuard) -> None:
        self._send(report(message, self.number))

    def received(self, aside: p.Aside) -> None:
        said = links.read_word(aside)
        assert said.round == self.number
        self._note((said.job_ranks, said.message))

    def _note(self, what: Any) -> None:
        self.seen.append(what)
        self.changed()


class Controlling(Changing):
    """A controller that remembers what happens, and says what the test wants it to."""

    newest: Controlling

    def __init__(self, answer: Callable[[Any], list[ControllerCommand]] | None = None) -> None:
        super().__init__()
        Controlling.newest = self
        self.events: list[Any] = []
        self._answer = answer

    def handle(self, event: ControllerEvent, now_ns: int) -> list[ControllerCommand]:
        self.events.append(event)
        self.changed()
        return self._answer(event) if self._answer is not None else []


class Peer:
    """A rank's end of its link, in this process."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._decoder = frames.FrameDecoder(m.MAX_MESSAGE_BYTES)

    async def say(self, message: msgspec.Struct | bytes, *fds: int) -> None:
        content = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        frame = frames.encode(content)
        sent = socket.send_fds(self.sock, [frame], fds) if fds else 0
        await asyncio.get_running_loop().sock_sendall(self.sock, frame[sent:])

    async def begin(self, message: msgspec.Struct) -> None:
        """Say the first message, with a page."""
        fd = page()
        try:
            await self.say(message, fd)
        finally:
            os.close(fd)

    async def hear(self) -> m.ToRank:
        while (frame := self._decoder.next()) is None:
            data = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
            if not data:
                raise EOFError
            self._decoder.feed(data)
        return msgspec.msgpack.decode(frame, type=m.ToRank)


def page(said: reading.Reading | None = None) -> int:
    """The descriptor of a page that says this."""
    fd = create_memfd("test-page", reading.PAGE_BYTES)
    os.pwrite(fd, reading.encode(said or reading.Reading(auto_ns=1)), 0)
    return fd
