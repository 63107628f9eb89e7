"""The rank's connection to its guard: messages out, messages in."""

from __future__ import annotations

import socket
import threading

import msgspec

from undaunted.coordinator.wire import frames
from undaunted.inprocess.core.messages import MAX_MESSAGE_BYTES, FromRank, ToRank
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank.forks import forget_in_children

_READ_BYTES = 64 * 1024
# The guard reads at once; one that does not has failed.
_SEND_S = 30.0

_ENCODER = msgspec.msgpack.Encoder()


class ChannelError(InternalError):
    """The guard cannot be talked to any more; says why."""


class Channel:
    """Owns the socket. Sent from any thread, received by one."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(_SEND_S)
        self._socket = sock
        self._lock = threading.Lock()
        self._frames = frames.FrameDecoder(MAX_MESSAGE_BYTES)
        self._decoder: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
        forget_in_children(self)

    def fileno(self) -> int:
        """The descriptor that becomes readable when something has come."""
        return self._socket.fileno()

    def send(self, message: FromRank, fd: int | None = None) -> None:
        """Say something to the guard, with a descriptor beside it.

        Raises:
            ChannelError: it is gone, or does not listen.
        """
        frame = frames.encode(_ENCODER.encode(message))
        try:
            with self._lock:
                sent = 0 if fd is None else socket.send_fds(self._socket, [frame], [fd])
                self._socket.sendall(frame[sent:])
        except OSError as error:
            raise ChannelError(f"the guard cannot be told anything: {error}") from error

    def receive(self) -> list[ToRank]:
        """Return what has come, once the socket is readable.

        Raises:
            ChannelError: the guard is gone, or says what cannot be understood.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise ChannelError(f"the connection to the guard has broken: {error}") from error
        if not data:
            raise ChannelError("the guard is gone")
        self._frames.feed(data)
        found = []
        try:
            while (content := self._frames.next()) is not None:
                found.append(self._decoder.decode(content))
        except (frames.FrameError, msgspec.MsgspecError) as error:
            raise ChannelError(f"the guard has sent what cannot be understood: {error}") from error
        return found

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def after_fork(self) -> None:
        """In a child: the connection is its parent's."""
        self._socket.close()
