"""Clients that stall, over real sockets, of a small application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from tests.coordinator.wire.certificates import make_certificate
from undaunted.coordinator.wire.credentials import server_context
from undaunted.services.server import Clients, Connection, configure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

    from undaunted.base.accepting import Waiting

LIMIT_S = 20.0
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"


class Place:
    """A server whose application answers when it may."""

    def __init__(self, tls: ssl.SSLContext | None, most: int, limit_s: float) -> None:
        self.said: list[str] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.content = b"answer"
        self.reads_body = True
        self.writers: list[asyncio.StreamWriter] = []
        config = configure(self._app, 100)
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self.state = self._server.server_state
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.clients = Clients(
            self._listener, self._protocol, self.said.append, tls=tls, most=most, limit_s=limit_s
        )

    def _protocol(self, waiting: Waiting) -> Connection:
        return Connection(self._server, waiting)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        while self.reads_body and (await receive()).get("more_body"):
            pass
        self.asked.set()
        await self.may_answer.wait()
        length = str(len(self.content)).encode()
        headers = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.content, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def connect(
        self, sent: bytes = b"", trusting: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address, ssl=trusting)
        self.writers.append(writer)
        writer.write(sent)
        return reader, writer


@asynccontextmanager
async def serving(
    *, tls: ssl.SSLContext | None = None, most: int = 100, limit_s: float = 3600
) -> AsyncIterator[Place]:
    place = Place(tls, most, limit_s)
    try:
        yield place
    finally:
        place.clients.close()
        for writer in place.writers:
            writer.transport.abort()
        for connection in list(place.state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        while place.state.connections or place.state.tasks:
            await asyncio.sleep(0)


async def left(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is ended."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), LIMIT_S)
    return b""


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GET)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    assert head.startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(6) == b"answer"


def on_loop(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, LIMIT_S))


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET[:-2], POST + b"1", GET, GET + b"G"])
def test_who_stalls_is_ended(sent: bytes) -> None:
    async def stalls() -> None:
        async with serving(limit_s=0.05) as place:
            reader, _ = await place.connect(sent)
            assert (b"answer" in await left(reader)) == sent.startswith(GET)
            assert place.said == []

    on_loop(stalls())


def test_an_answer_may_take_long_and_a_request_may_follow() -> None:
    async def slow() -> None:
        async with serving(most=1) as place:
            place.may_answer.clear()
            reader, _ = await place.connect(GET)
            await place.asked.wait()
            for _ in range(3):  # the first two have to go; who is being answered has not
                await place.connect()
            place.may_answer.set()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")

    on_loop(slow())


def test_the_oldest_silent_one_has_to_go_which_is_said_once() -> None:
    async def crowd() -> None:
        async with serving(most=2) as place:
            silent = [await place.connect(b"GET") for _ in range(6)]
            await answered(*await place.connect())
            for reader, _ in silent[:4]:
                assert await left(reader) == b""
            assert len(place.said) == 1
            assert place.said[0].startswith("2 connections wait for clients")

    on_loop(crowd())


def test_a_body_that_does_not_come_after_the_refusal_is_not_waited_for() -> None:
    async def refused() -> None:
        async with serving(limit_s=0.05) as place:
            place.reads_body = False
            reader, _ = await place.connect(POST)
            assert b"answer" in await left(reader)

    on_loop(refused())


def test_who_does_not_read_is_ended() -> None:
    async def full() -> None:
        async with serving(limit_s=0.05) as place:
            place.content = b"x" * (32 << 20)
            await place.connect(GET)
            await place.asked.wait()
            while place.state.connections:
                await asyncio.sleep(0)

    on_loop(full())


def test_each_request_of_a_connection_has_its_own_time() -> None:
    async def two() -> None:
        async with serving(most=1) as place:
            reader, writer = await place.connect()
            await answered(reader, writer)
            await answered(reader, writer)
            writer.write(b"nonsense\r\n\r\n")
            assert (await left(reader)).startswith(b"HTTP/1.1 400")

    on_loop(two())


def test_with_tls_as_well(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "server", "IP:127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(made.cert))

    async def silent_before_tls() -> None:
        async with serving(tls=server_context(made.cert, made.key), most=1) as place:
            first, _ = await place.connect()
            second, _ = await place.connect(b"GET / HTTP/1.1\r\n\r\n")
            assert await left(first) == b""
            assert b"HTTP" not in await left(second)
            await answered(*await place.connect(trusting=trusting))
            assert len(place.said) == 1

    async def too_long() -> None:
        async with serving(tls=server_context(made.cert, made.key), limit_s=0.05) as place:
            reader, _ = await place.connect()
            assert await left(reader) == b""
            assert place.said == []

    on_loop(silent_before_tls())
    on_loop(too_long())
