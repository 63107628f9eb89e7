"""An end of the socket between trainer and writer: messages out and in, with descriptors."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from typing import Any

import msgspec

from undaunted.base.descriptors import receive, send
from undaunted.checkpointing.writer.messages import MAX_MESSAGE_BYTES
from undaunted.coordinator.wire.frames import FrameDecoder, FrameError, encode

_READ_BYTES = 256 * 1024
_MOST_FDS = 16  # that one read may bring

_ENCODER = msgspec.msgpack.Encoder()


class Connection:
    """Owns a connected Unix stream socket.

    Nothing here blocks as long as the socket does not. Not safe for threads.

    Attributes:
        fds: descriptors that have come, in the order of their messages. Who takes one out closes
            it.
    """

    def __init__(self, sock: socket.socket, kind: Any) -> None:
        """Take the socket over.

        Args:
            sock: of this end.
            kind: of the messages that come: a union of tagged structs.
        """
        self.fds: deque[int] = deque()
        self._sock = sock
        self._incoming = msgspec.msgpack.Decoder(kind)
        self._frames = FrameDecoder(MAX_MESSAGE_BYTES)
        self._outbox: deque[tuple[memoryview, int]] = deque()  # what is left, and a descriptor

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    @property
    def waits_to_send(self) -> bool:
        """Whether something could not be sent yet: then call :meth:`flush` when it can be."""
        return bool(self._outbox)

    def send(self, message: msgspec.Struct, fd: int = -1) -> None:
        """Send a message, now or with :meth:`flush`.

        Args:
            message: what to say.
            fd: a descriptor to go with it, which stays the caller's; -1 = none.

        Raises:
            OSError: the other end is gone.
            ValueError: the message is too long.
        """
        content = _ENCODER.encode(message)
        if len(content) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(content)} bytes, {MAX_MESSAGE_BYTES} are allowed")
        own = os.dup(fd) if fd >= 0 else -1
        self._outbox.append((memoryview(encode(content)), own))
        self.flush()

    def flush(self) -> None:
        """Send what can be sent.

        Raises:
            OSError: the other end is gone.
        """
        while self._outbox:
            data, fd = self._outbox[0]
            try:
                count = send(self._sock, data, fd)
            except BlockingIOError:
                return
            if fd >= 0:
                os.close(fd)
            if count < len(data):
                self._outbox[0] = data[count:], -1
            else:
                self._outbox.popleft()

    def receive(self) -> list[Any] | None:
        """Return the messages that a read has completed, None at the end of the connection.

        Raises:
            OSError: the connection has broken.
            ValueError: what has come is no message.
        """
        try:
            data, fds, _ = receive(self._sock, _READ_BYTES, _MOST_FDS)
        except BlockingIOError:
            return []
        self.fds.extend(fds)
        if not data:
            return None
        self._frames.feed(data)
        messages = []
        try:
            while (frame := self._frames.next()) is not None:
                messages.append(self._incoming.decode(frame))
        except (FrameError, msgspec.MsgspecError) as error:
            raise ValueError(str(error)) from None
        return messages

    def shut_down(self) -> None:
        """Let the other end see that nothing more will come."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release socket and descriptors; again and again without harm."""
        self._sock.close()
        for fd in (*self.fds, *(fd for _, fd in self._outbox)):
            if fd >= 0:
                os.close(fd)
        self.fds.clear()
        self._outbox.clear()
