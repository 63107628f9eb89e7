"""One connection, on either side: handshake, then messages, then the end with its reason."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import itertools
import os
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from undaunted.base.text import format_duration, one_line
from undaunted.coordinator.protocol import MAX_HANDSHAKE_BYTES, MAX_MESSAGE_BYTES
from undaunted.coordinator.wire.address import Address, is_loopback
from undaunted.coordinator.wire.frames import HEAD_BYTES, FrameDecoder, FrameError, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from undaunted.coordinator.wire.handshake import Handshake


class WireError(Exception):
    """There is no connection, or no server; the message says where, why and what to do.

    Attributes:
        refused: one of the two sides does not want the other: version, job or token do not fit.
            Trying again is of use only if another process may answer then.
        number: of the system's error, 0 = it was none.
    """

    def __init__(self, message: str, *, refused: bool = False, number: int = 0) -> None:
        """``message``: one line for people."""
        super().__init__(message)
        self.refused = refused
        self.number = number


# So much may wait for a peer that does not read, in bytes, beside the message that is sent last.
MAX_WAITING_BYTES = 1024 * 1024

# How long what was sent before `close` may take to be delivered.
_LINGER_S = 2.0

_READ_BYTES = 64 * 1024
_LONG_BYTES = 256


class _Scratch(threading.local):
    """The buffer for all reads. It is emptied at once, so that all connections of a loop share it.

    A buffer that is made for every read, as in `asyncio.Protocol`, costs more than the read.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


_scratch = _Scratch()
_ENCODER = msgspec.msgpack.Encoder()


class _LastLong:
    """The last long message that was sent, and its frame: one to a thousand peers is encoded once.

    Short ones, between which it may be sent, cost little. Loops of several threads share it.
    """

    sent: tuple[msgspec.Struct | None, bytes] = (None, b"")


def _framed(message: msgspec.Struct) -> bytes:
    known, frame = _LastLong.sent
    if message is known:
        return frame
    frame = encode(_ENCODER.encode(message))
    if _LONG_BYTES < len(frame) <= MAX_MESSAGE_BYTES:
        _LastLong.sent = message, frame
    return frame


class Handler(Protocol):
    """The user of connections. The methods are called on the loop and must not block.

    An exception of theirs goes to the loop's exception handler and costs that connection.
    """

    def opened(self, connection: Connection) -> None:
        """The peer has proved itself."""

    def received(self, connection: Connection, message: Any) -> None:
        """A message has come, of one of the types that were asked for."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection has ended, on either side: called once for each that was opened."""


class Owner(Protocol):
    """The maker of the connection: server or client."""

    def established(self, connection: Connection) -> None:
        """The handshake is over; `Handler.opened` follows."""

    def holds(self, connection: Connection, size: int) -> None:
        """``size`` bytes of an incomplete long message have come; 0 = it is complete."""

    def ended(self, connection: Connection, end: End) -> None:
        """The connection has ended; if it was opened, `Handler.closed` has been called."""


class End(msgspec.Struct, frozen=True):
    """The end of a connection.

    Attributes:
        reason: for people.
        fault: the peer did what it must not do.
        refused: one of the two does not want the other.
    """

    reason: str
    fault: bool = False
    refused: bool = False


class _State(enum.Enum):
    SHAKING = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


_NUMBERS = itertools.count(1)  # of connections


class Connection(asyncio.BufferedProtocol):
    """A peer that can be sent messages until it is gone.

    Used on the loop it was made on. Nothing here waits, and nothing raises because of a peer.

    Attributes:
        number: its place in the order in which the connections of this process were made.
        peer: the other side's address.
        node: name of the other side's node, where it is a client; "" before `Handler.opened`.
        longest: how many bytes a message may have, either way; to be set before the handshake.
            A later value counts for those that are sent.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: Address,
        handshake: Handshake,
        handler: Handler,
        owner: Owner,
        decode: Callable[[bytes], Any],
        handshake_s: float,
    ) -> None:
        """Not to be called by users: see `Server` and `connect`.

        Args:
            sock: connected; the code that adopts it into the loop owns it.
            peer: address of the other side.
            handshake: this side of it.
            handler: gets what happens.
            owner: hears when the handshake is over and when the connection is.
            decode: from the content of a frame to a message; raises errors of msgspec.
            handshake_s: longest duration until the handshake is over, TLS included, seconds.
        """
        self.number = next(_NUMBERS)
        self.peer = peer
        self.node = ""
        self.longest = MAX_MESSAGE_BYTES
        self._was_reset = False
        self._has_closed = False  # the other side
        self._is_long = False  # the message that is being received
        self._sock = sock
        self._handshake = handshake
        self._handler = handler
        self._owner = owner
        self._decode = decode
        self._decoder = FrameDecoder(MAX_HANDSHAKE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._state = _State.SHAKING
        self._was_open = False
        self._end: End | None = None
        late = f"no handshake within {format_duration(handshake_s)}"
        self._timer = self._loop.call_later(handshake_s, self.drop, late)

    # --- for users ------------------------------------------------------------------------------

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message soon, after those before it; return whether it was taken.

        It is not when the connection is ending. A peer that lets more than 1 MiB wait, and a
        message that is longer than a frame, end the connection.
        """
        if self._state is not _State.OPEN or self._transport is None:
            return False
        if self._transport.is_closing():
            return False
        frame = _framed(message)
        if (length := len(frame) - HEAD_BYTES) > self.longest:
            name = type(message).__name__
            self.close(f"a {name} of {length} bytes is longer than {self.longest}")
            return False
        waiting = self._transport.get_write_buffer_size()
        if waiting > MAX_WAITING_BYTES:
            self.drop(f"it does not read: {waiting} bytes wait for it")
            return False
        self._transport.write(frame)
        return True

    @property
    def is_open(self) -> bool:
        """Return whether it has not begun to end, as far as this process has seen."""
        return self._state is _State.OPEN

    @property
    def was_ended(self) -> bool:
        """Return whether the other side, or its kernel, has ended it: silence is another matter."""
        return self._has_closed or self._was_reset

    @property
    def in_order(self) -> bool:
        """Return whether the other side has closed it, or its kernel when its process ended.

        A reset may come from the network; on one machine there is none.
        """
        return self._has_closed or is_loopback(self.peer.host)

    def close(self, reason: str) -> None:
        """End it when what was sent before is delivered, after 2 s at the latest.

        Nothing is received any more. `Handler.closed` follows with this reason.
        """
        self._finish(End(reason))

    # --- for owners -----------------------------------------------------------------------------

    def drop(self, reason: str) -> None:
        """End it at once, by the peer's fault."""
        self._finish(End(reason, fault=True), at_once=True)

    async def adopted(self, adoption: Awaitable[tuple[asyncio.BaseTransport, object]]) -> None:
        """Wait until the loop has it, TLS included.

        Raises:
            OSError: that has failed.
        """
        transport, _ = await adoption
        if self._transport is None:
            # A connection that is lost while TLS is set up counts as made in some versions.
            transport.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def failed(self, error: BaseException, *, tls: bool) -> None:
        """The loop could not adopt the connection: TLS has failed, or time ran out."""
        why = describe(error)
        if tls and not isinstance(error, ssl.SSLError):
            # A client that does not trust a certificate mostly goes without a word.
            why = f"TLS: {why}; it may not trust this node's certificate, or not use TLS"
        self._over(End(why, fault=tls))

    # --- for the loop ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._state is not _State.SHAKING:
            transport.abort()
        elif (first := self._handshake.begin()) is not None:
            transport.write(encode(first))

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where the loop may write what it reads."""
        return _scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        """Take the frames that are complete."""
        self._decoder.feed(_scratch.view[:nbytes])
        try:
            while self._state in (_State.SHAKING, _State.OPEN):
                frame = self._decoder.next()
                if frame is None:
                    break
                if self._state is _State.OPEN:
                    self._take(frame)
                else:
                    self._shake(frame)
        except FrameError as error:
            self.drop(str(error))
        held = self._decoder.held
        if self._is_long or held > _READ_BYTES:
            self._is_long = held > _READ_BYTES
            self._owner.holds(self, held if self._is_long else 0)

    def eof_received(self) -> None:
        """Nothing more will come."""
        self._has_closed = self._state is _State.OPEN
        self._finish(End("the other side closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone."""
        self._was_reset = isinstance(error, ConnectionError)
        if self._transport is not None:
            self._transport.close()  # that of TLS wants it said, in Python 3.10
        self._over(End("the connection ended" if error is None else describe(error)))

    # --- inside ---------------------------------------------------------------------------------

    def _shake(self, frame: bytes) -> None:
        assert self._transport is not None
        step = self._handshake.received(frame)
        if step.send is not None:
            self._transport.write(encode(step.send))
        if step.refusal:
            self._finish(End(step.refusal, fault=True, refused=True))
        elif step.done:
            self._timer.cancel()
            self._state = _State.OPEN
            self._was_open = True
            self._decoder.longest = self.longest
            self.node = self._handshake.node
            self._owner.established(self)
            self._call(self._handler.opened)

    def _take(self, frame: bytes) -> None:
        try:
            message = self._decode(frame)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.drop(one_line(f"what came is no message: {error}", longest=200))
            return
        self._call(self._handler.received, message)

    def _call(self, method: Callable[..., None], *arguments: object) -> None:
        try:
            method(self, *arguments)
        except Exception as error:  # noqa: BLE001 - a bug of the handler, not of the peer
            told = {"message": f"error in {method.__qualname__}", "exception": error}
            self._loop.call_exception_handler({**told, "protocol": self})
            self._finish(End(one_line(f"internal error: {error!r}")), at_once=True)

    def _finish(self, end: End, *, at_once: bool = False) -> None:
        """Begin to end it, in the loop's time; `_over` follows."""
        if self._state in (_State.CLOSING, _State.CLOSED):
            return
        self._state = _State.CLOSING
        self._end = end
        self._timer.cancel()
        if self._transport is None:
            # TLS is being set up: make that fail.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        elif at_once:
            self._transport.abort()
        else:
            self._transport.close()
            self._timer = self._loop.call_later(_LINGER_S, self._transport.abort)

    def _over(self, end: End) -> None:
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._timer.cancel()
        end = self._end or end
        if self._was_open:
            self._call(self._handler.closed, end.reason)
        self._owner.ended(self, end)


def describe(error: BaseException) -> str:
    """Return why a connection failed, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return one_line(f"TLS: {error.verify_message}")
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "TLS: the other side does not use it, and this one does"
    if isinstance(error, ssl.SSLError):
        return one_line(f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}")
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return one_line(str(error)) or type(error).__name__
