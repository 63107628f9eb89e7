"""What the tests of the wire share: a loop with a deadline, handlers that remember, raw peers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.coordinator.protocol import MAX_HANDSHAKE_BYTES
from undaunted.coordinator.wire import frames
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from undaunted.coordinator.wire.connection import Connection

TOKEN = b"0123456789abcdef"
DEADLINE_S = 60.0


def terms(**changes: Any) -> Terms:
    return Terms(**{"run_id": "job7", "build": "0.1.0", "token": TOKEN, "node": "n3", **changes})


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of its own; whatever is raised into the loop fails it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        raised: list[dict[str, Any]] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: raised.append(context))
            await asyncio.wait_for(test(*args, **kwargs), DEADLINE_S)

        asyncio.run(main())
        assert [str(context) for context in raised] == []

    return run


class Recorder:
    """A handler that remembers what happens and lets tests wait for it."""

    def __init__(self, answer: Callable[[Connection, Any], None] | None = None) -> None:
        self.answer = answer
        self.connections: list[Connection] = []
        self.messages: list[Any] = []
        self.ends: list[str] = []
        self._changed = asyncio.Event()

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._changed.set()

    def received(self, connection: Connection, message: Any) -> None:
        self.messages.append(message)
        if self.answer is not None:
            self.answer(connection, message)
        self._changed.set()

    def closed(self, connection: Connection, reason: str) -> None:
        self.ends.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Remarks(list[str]):
    """Lines of a server; tests can wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.append(line)
        self._changed.set()

    async def until(self, part: str) -> str:
        while not (found := [line for line in self if part in line]):
            self._changed.clear()
            await self._changed.wait()
        return found[0]


@contextlib.asynccontextmanager
async def serving(handler: Recorder, **options: Any) -> AsyncIterator[Server]:
    options = {"terms": terms(), "address": "127.0.0.1:0", **options}
    server = Server(options.pop("address"), handler, options.pop("terms"), **options)
    await server.start()
    try:
        yield server
    finally:
        await server.close("the test is over")


@contextlib.asynccontextmanager
async def pair(
    at_server: Recorder, at_client: Recorder, **options: Any
) -> AsyncIterator[tuple[Connection, Connection, Server]]:
    """A connection, seen from the server and from the client."""
    client_tls = options.pop("client_tls", None)
    async with serving(at_server, **options) as server:
        client = await connect(
            f"127.0.0.1:{server.port}", at_client, terms(), tls=client_tls, timeout_s=DEADLINE_S
        )
        await at_server.until(lambda: bool(at_server.connections))
        try:
            yield at_server.connections[0], client, server
        finally:
            client.close("the test is over")
            await at_client.until(lambda: bool(at_client.ends))
            await at_server.until(lambda: bool(at_server.ends))


class Raw:
    """A peer that says whatever the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, message: msgspec.Struct | bytes) -> None:
        content = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        self.writer.write(frames.encode(content))

    async def hear(self, kind: Any = dict) -> Any:
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        assert length <= MAX_HANDSHAKE_BYTES
        return msgspec.msgpack.decode(await self.reader.readexactly(length), type=kind)

    async def rest(self) -> bytes:
        """Everything up to the end, however the other side ends it."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def raw_peer(server: Server) -> AsyncIterator[Raw]:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        yield raw
    finally:
        await raw.close()
