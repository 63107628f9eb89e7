"""The guard's end of the link to a rank: messages in, the page's descriptor with them, and out."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.descriptors import receive
from undaunted.base.text import one_line
from undaunted.coordinator.wire.frames import FrameDecoder, FrameError, encode
from undaunted.inprocess.core.messages import MAX_MESSAGE_BYTES, FromRank

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from undaunted.inprocess.core.messages import ToRank

# So many bytes may wait for a rank that does not read, beside the message that is sent last.
_WAITING_BYTES = MAX_MESSAGE_BYTES

_READ_BYTES = 64 * 1024
_FDS = 4  # descriptors that one read may bring; all but the last are closed

_DECODER = msgspec.msgpack.Decoder(FromRank)
_ENCODER = msgspec.msgpack.Encoder()


class RankLink:
    """A connected Unix stream socket, which it owns. Used on one loop."""

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
            closed: called once, with the reason, when nothing more will come; not after `close`.
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
        """Return the descriptor that has come last, which is the caller's now; -1 = none."""
        page, self._page = self._page, -1
        return page

    def send(self, message: ToRank) -> None:
        """Send soon. A rank that does not read ends the link when too much waits for it."""
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
        """Take in all that was sent by a process that has ended."""
        while self._sock.fileno() >= 0 and self._read():
            pass

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Take in a piece; return whether there was one."""
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
            # That the rank is gone is noticed when what it has sent before was read.
            self._waiting.clear()
            self._loop.remove_writer(self._sock)
            return
        del self._waiting[:sent]
        if self._waiting:
            self._loop.add_writer(self._sock, self._writable)
        else:
            self._loop.remove_writer(self._sock)
