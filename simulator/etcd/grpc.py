"""Stands where the package `grpc` does, for one simulated process: channels, calls, their errors.

A channel is a connection of the simulated network. As in gRPC, a call waits for it, has a deadline
of its own, and is cancelled with its channel; a connection on which nothing comes back is noticed.
"""

from __future__ import annotations

import asyncio
import enum
import errno
from collections import deque
from typing import TYPE_CHECKING, Any

from simulator.etcd.messages import Answer, Call, Ended, Failure, Ping, Pong
from undaunted.coordinator.wire.connection import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.virtual.program import Program
    from undaunted.coordinator.wire.connection import Connection

_CONNECT_S = 20.0
_ASK_ALIVE_S, _ALIVE_S = 10.0, 5.0  # as `undaunted.coordinator.etcd.client` wants it
_LONGEST = 1 << 20

Metadata = list[tuple[str, str]]


class StatusCode(enum.Enum):
    """Those that are told apart."""

    DEADLINE_EXCEEDED = enum.auto()
    UNAVAILABLE = enum.auto()
    UNAUTHENTICATED = enum.auto()
    PERMISSION_DENIED = enum.auto()
    INVALID_ARGUMENT = enum.auto()


class AioRpcError(Exception):
    """A call has failed."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> StatusCode:
        """See gRPC."""
        return self._code

    def details(self) -> str:
        """See gRPC."""
        return self._details


class Grpc:
    """See the module's documentation."""

    StatusCode = StatusCode
    AioRpcError = AioRpcError

    def __init__(self, program: Program) -> None:
        self.aio = self
        self._program = program

    def insecure_channel(self, target: str, options: Sequence[tuple[str, Any]] = ()) -> Channel:
        """See gRPC."""
        del options
        return Channel(self._program, target)


class Channel:
    """Calls to one member; the first one connects, and whichever comes after the connection broke.

    It is the handler of that connection.
    """

    def __init__(self, program: Program, target: str) -> None:
        self._program, self._target = program, target
        self._link: Connection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._calls: dict[int, _Call] = {}
        self._made = 0
        self._alive: asyncio.TimerHandle | None = None

    def unary_unary(self, path: str) -> Callable[..., Any]:
        """See gRPC."""

        async def ask(request: bytes, *, timeout: float, metadata: Metadata) -> bytes:
            call = self._call(path, timeout, metadata)
            try:
                await call.write(request)
                return await call.read()
            finally:
                call.cancel()

        return ask

    def stream_stream(self, path: str) -> Callable[..., _Call]:
        """See gRPC."""

        def talk(*, timeout: float | None, metadata: Metadata) -> _Call:
            return self._call(path, timeout, metadata)

        return talk

    async def close(self, grace: float | None = None) -> None:
        """See gRPC."""
        if grace and self._calls:
            await asyncio.sleep(grace)
        if self._dial is not None:
            self._dial.cancel()
        for call in list(self._calls.values()):
            call.cut()
        if self._link is not None:
            self._link.close("the channel is closed")

    # --- for its calls --------------------------------------------------------------------------

    def _call(self, path: str, timeout_s: float | None, metadata: Metadata) -> _Call:
        self._made += 1
        must_lead = ("hasleader", "true") in metadata
        call = self._calls[self._made] = _Call(self, self._made, path, must_lead=must_lead)
        call.expire_in(timeout_s)
        if self._link is None and self._dial is None:
            self._dial = asyncio.get_running_loop().create_task(self._connect())
        return call

    def send(self, message: Any) -> bool:
        """Say something, unless there is no connection yet."""
        return self._link is not None and self._link.send(message)

    def forget(self, number: int) -> None:
        """A call is over."""
        if self._calls.pop(number, None) is not None:
            self.send(Ended(number))

    # --- the connection -------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            self._link = await self._program.connect(
                self._target, self, longest=_LONGEST, timeout_s=_CONNECT_S
            )
        except WireError as error:
            refused = error.number == errno.ECONNREFUSED
            self._fail("connection refused" if refused else "connection timed out")
        finally:
            self._dial = None

    def opened(self, connection: Connection) -> None:
        """See `Handler`."""
        self._link = connection
        for call in list(self._calls.values()):
            call.begin()
        self._ask_alive()

    def received(self, connection: Connection, message: Any) -> None:
        """See `Handler`."""
        del connection
        if isinstance(message, Pong):
            self._ask_alive()
        elif (call := self._calls.get(message.number)) is None:
            pass
        elif isinstance(message, Answer):
            call.take(message.answer)
        elif isinstance(message, Failure):
            call.fail(StatusCode.UNAVAILABLE, message.reason)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `Handler`."""
        del connection
        self._link = None
        if self._alive is not None:
            self._alive.cancel()
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        for call in list(self._calls.values()):
            call.fail(StatusCode.UNAVAILABLE, reason)

    def _ask_alive(self) -> None:
        loop = asyncio.get_running_loop()
        if self._alive is not None:
            self._alive.cancel()

        def ask() -> None:
            self.send(Ping())
            self._alive = loop.call_later(_ALIVE_S, lost)

        def lost() -> None:
            if self._link is not None:
                self._link.drop("keepalive: no answer")

        self._alive = loop.call_later(_ASK_ALIVE_S, ask)


class _Call:
    """One call; see gRPC for `write`, `read` and `cancel`."""

    def __init__(self, channel: Channel, number: int, path: str, *, must_lead: bool) -> None:
        self._channel, self._number, self._path = channel, number, path
        self._must_lead = must_lead
        self._unsent: deque[bytes] = deque()
        self._answers: deque[bytes] = deque()
        self._error: AioRpcError | None = None
        self._cut = False
        self._waiting: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def write(self, request: bytes) -> None:
        self._unsent.append(request)
        self.begin()

    async def read(self) -> bytes:
        while not self._answers:
            if self._cut:
                raise asyncio.CancelledError
            if self._error is not None:
                raise self._error
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._answers.popleft()

    def cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._channel.forget(self._number)

    # --- for its channel ------------------------------------------------------------------------

    def expire_in(self, seconds: float | None) -> None:
        """Fail then."""
        if seconds is not None:
            late = StatusCode.DEADLINE_EXCEEDED
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(seconds, self.fail, late, "deadline exceeded")

    def begin(self) -> None:
        """Send what waits for the connection."""
        while self._unsent:
            call = Call(self._number, self._path, self._unsent[0], self._must_lead)
            if not self._channel.send(call):
                return
            self._unsent.popleft()

    def take(self, answer: bytes) -> None:
        """An answer is there."""
        self._answers.append(answer)
        self._wake()

    def fail(self, code: StatusCode, details: str) -> None:
        """It fails once all answers have been read."""
        self._error = self._error or AioRpcError(code, details)
        self._wake()

    def cut(self) -> None:
        """Its channel is closed."""
        self._cut = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
