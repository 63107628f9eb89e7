"""The process of a rank on this machine: the link to it, its page, its end, signals."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Protocol

import msgspec

from undaunted.base import process
from undaunted.base.descriptors import receive
from undaunted.base.text import one_line
from undaunted.coordinator.wire.frames import FrameDecoder, FrameError, encode
from undaunted.coordinator.wire.sockets import peer
from undaunted.inprocess.core.messages import MAX_MESSAGE_BYTES, FromRank
from undaunted.inprocess.core.reading import PAGE_BYTES, decode

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from undaunted.inprocess.core.messages import ToRank
    from undaunted.inprocess.core.reading import Reading


class Served(Protocol):
    """The listener to a rank's process; see `service.ServedRank`."""

    def received(self, message: FromRank) -> None:
        """It has sent a message."""

    def closed(self, reason: str) -> None:
        """Its connection has ended, mostly because its process ends: the next call says so."""

    def ended(self) -> None:
        """It has ended; all that it has sent before was received."""


class RankProcess(Protocol):
    """The process of a rank, and the link to it: what a guard needs of the world.

    Attributes:
        pid: of the process.
    """

    pid: int

    def serve(self, rank: Served) -> None:
        """Call the methods of ``rank`` from now on."""

    def take_page(self) -> bool:
        """Take the page that came with the first message; return whether there was one."""

    def read(self) -> Reading | None:
        """Read the page; None = there is none of this version."""

    def state(self) -> str:
        """Return the letter of its state in /proc, "" = gone."""

    def send(self, message: ToRank) -> None:
        """Send the process a message."""

    def signal(self, numbers: tuple[int, ...]) -> None:
        """Send the process these signals, in order."""

    def close(self) -> None:
        """Release everything; no method of the rank is called any more."""


class SocketProcess:
    """The process that has made the other end of a socket; see `RankProcess`.

    Owns the socket, a pidfd and a mapping of the page.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Find the process.

        Raises:
            OSError: it cannot be watched.
        """
        self.pid = peer(sock).pid
        pidfd = process.open_pidfd(self.pid)
        if pidfd is None:
            raise ProcessLookupError(f"the rank's process (pid {self.pid}) has ended already")
        self._sock = sock
        self._pidfd = pidfd
        self._page: PageReader | None = None
        self._link: RankLink
        self._rank: Served
        self._loop = asyncio.get_running_loop()

    def serve(self, rank: Served) -> None:
        """See `RankProcess`."""
        self._rank = rank
        self._link = RankLink(self._sock, rank.received, rank.closed)
        self._loop.add_reader(self._pidfd, self._ended)

    def take_page(self) -> bool:
        """See `RankProcess`."""
        fd = self._link.take_page()
        if fd < 0:
            return False
        try:
            self._page = PageReader(fd)
        except (OSError, ValueError):
            return False
        return True

    def read(self) -> Reading | None:
        """See `RankProcess`."""
        return None if self._page is None else self._page.read()

    def state(self) -> str:
        """See `RankProcess`."""
        return process.state(self.pid)

    def send(self, message: ToRank) -> None:
        """See `RankProcess`."""
        self._link.send(message)

    def signal(self, numbers: tuple[int, ...]) -> None:
        """See `RankProcess`."""
        if self._pidfd >= 0:
            for number in numbers:
                process.signal_pidfd(self._pidfd, number)

    def close(self) -> None:
        """See `RankProcess`."""
        if self._pidfd < 0:
            return
        self._link.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if self._page is not None:
            self._page.close()
            self._page = None

    def _ended(self) -> None:
        """Messages that it has sent before are still read."""
        self._link.drain()
        self._rank.ended()


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
