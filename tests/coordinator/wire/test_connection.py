from __future__ import annotations

import asyncio
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.coordinator.wire.talk import Recorder, Remarks, on_loop, pair, raw_peer, serving, terms
from undaunted.coordinator.protocol import (
    MAJOR,
    MAX_MESSAGE_BYTES,
    Beat,
    Challenge,
    Grant,
    Ledger,
    Refused,
    Renew,
    Seat,
)
from undaunted.coordinator.wire import connection as module
from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import MAX_WAITING_BYTES, describe
from undaunted.coordinator.wire.handshake import ClientHandshake


def ledger(nodes: int) -> Ledger:
    seats = (
        Seat(
            node=f"node{i}",
            incarnation="0123456789abcdef",
            address=f"10.0.0.1:{i}",
            group_rank=i,
            first_rank=8 * i,
            slots=8,
        )
        for i in range(nodes)
    )
    return Ledger(run_id="job7", table=tuple(seats))


async def proved(server: Any) -> Any:
    """A raw peer that has proved itself and may now say anything."""
    raw = raw_peer(server)
    peer = await raw.__aenter__()
    shaking = ClientHandshake(terms(), bytes(32))
    challenge = msgspec.msgpack.encode(await peer.hear())
    peer.say(shaking.received(challenge).send or b"")
    assert (await peer.hear())["type"] == "Accepted"
    return raw, peer


@on_loop
async def test_messages_go_both_ways_in_order() -> None:
    at_server = Recorder(lambda connection, message: connection.send(Beat(epoch=message.epoch)))
    at_client = Recorder()
    async with pair(at_server, at_client) as (served, client, server):
        assert served.node == "n3"
        assert client.node == ""
        assert str(client.peer) == f"127.0.0.1:{server.port}"
        assert all(client.send(Renew(epoch=i)) for i in range(200))
        await at_client.until(lambda: len(at_client.messages) == 200)
    assert at_server.messages == [Renew(epoch=i) for i in range(200)]
    assert at_client.messages == [Beat(epoch=i) for i in range(200)]
    assert at_server.ends == ["the other side closed the connection"]
    assert at_client.ends == ["the test is over"]
    for connection in (served, client):
        assert connection.in_order  # on one machine
        connection.peer = Address("10.0.0.1", 1)
    assert (served.in_order, client.in_order) == (True, False)


@on_loop
async def test_a_reset_is_not_in_order() -> None:
    at_server = Recorder()
    async with serving(at_server) as server:
        raw, peer = await proved(server)
        await at_server.until(lambda: bool(at_server.connections))
        sock = peer.writer.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()
        await at_server.until(lambda: bool(at_server.ends))
        await raw.__aexit__(None, None, None)
    assert at_server.ends == ["connection reset by peer"]
    at_server.connections[0].peer = Address("10.0.0.1", 1)
    assert not at_server.connections[0].in_order


@on_loop
async def test_what_was_sent_before_close_is_delivered() -> None:
    at_server, at_client = Recorder(), Recorder()
    async with pair(at_server, at_client) as (served, _client, _server):
        for _ in range(4):
            assert served.send(
                Grant(node="n", incarnation="i", epoch=1, granted=True, ledger=LARGE)
            )
        served.close("the job is over")
        assert not served.send(Renew(epoch=1))
        served.close("twice")
        await at_client.until(lambda: bool(at_client.ends))
        await at_server.until(lambda: bool(at_server.ends))
    assert len(at_client.messages) == 4
    assert at_server.ends == ["the job is over"]


LARGE = ledger(2000)  # 200 KB


@on_loop
async def test_what_comes_after_close_is_not_received() -> None:
    at_server = Recorder(lambda connection, _message: connection.close("one is enough"))
    at_client = Recorder()
    async with pair(at_server, at_client) as (_served, client, _server):
        for i in range(50):
            client.send(Renew(epoch=i))
        await at_server.until(lambda: bool(at_server.ends))
    assert at_server.messages == [Renew(epoch=0)]


@on_loop
async def test_a_peer_that_does_not_read_is_closed_when_too_much_waits() -> None:
    at_server, remarks = Recorder(), Remarks()
    async with serving(at_server, say=remarks) as server:
        raw, _peer = await proved(server)
        _peer.writer.transport.pause_reading()
        await at_server.until(lambda: bool(at_server.connections))
        connection = at_server.connections[0]
        sent = 0
        while connection.send(
            Grant(node="n", incarnation="i", epoch=1, granted=True, ledger=LARGE)
        ):
            sent += 1
            assert sent < 1000
            waiting = connection._transport.get_write_buffer_size()
            assert waiting <= 2 * MAX_WAITING_BYTES
        await at_server.until(lambda: bool(at_server.ends))
        assert "it does not read" in at_server.ends[0]
        assert "(n3) closed: it does not read" in await remarks.until("does not read")
        await raw.__aexit__(None, None, None)


@on_loop
async def test_close_does_not_wait_for_a_peer_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LINGER_S", 0.02)
    at_server = Recorder()
    async with serving(at_server) as server:
        raw, peer = await proved(server)
        peer.writer.transport.pause_reading()
        await at_server.until(lambda: bool(at_server.connections))
        connection = at_server.connections[0]
        while not connection._transport.get_write_buffer_size():
            assert connection.send(Refused(reason="y" * 500_000))
        connection.close("enough")
        await at_server.until(lambda: at_server.ends == ["enough"])
        await raw.__aexit__(None, None, None)


@on_loop
async def test_a_message_that_is_too_long_is_not_sent() -> None:
    at_server, at_client = Recorder(), Recorder()
    async with pair(at_server, at_client) as (_served, client, _server):
        assert client.send(Refused(reason="x" * 1_000_000))
        assert not client.send(Refused(reason="x" * MAX_MESSAGE_BYTES))
        await at_server.until(lambda: bool(at_server.ends))
    assert len(at_server.messages) == 1
    assert "Refused of 10486" in at_client.ends[0]
    assert f"is longer than {MAX_MESSAGE_BYTES}" in at_client.ends[0]


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc1",
        b"\xff" * 20,
        msgspec.msgpack.encode({"type": "Nobody"}),
        msgspec.msgpack.encode({"type": "Renew", "epoch": "x"}),
        msgspec.msgpack.encode({"type": "Beat"}),
        msgspec.msgpack.encode([1, 2]),
        b"\x82\xa4type\xa5Renew\xa1x" + b"\x91" * 100_000,  # deep
        b"\x82\xa4type\xa6Report\xaaunkillable\xdd\xff\xff\xff\xff",  # announces 2^32 numbers
        b"\x82\xa4type\xa5Renew\xa5epoch\xa2\xff\xff",  # not UTF-8
    ],
)
def test_garbage_costs_its_connection_and_nothing_else(garbage: bytes) -> None:
    @on_loop
    async def run() -> None:
        at_server, at_client, remarks = Recorder(), Recorder(), Remarks()
        async with pair(at_server, at_client, say=remarks) as (_served, client, server):
            raw, peer = await proved(server)
            peer.say(garbage)
            peer.say(Renew(epoch=99))
            assert await peer.rest() == b""
            await raw.__aexit__(None, None, None)
            client.send(Renew(epoch=1))
            await at_server.until(lambda: bool(at_server.messages))
            assert "what came is no message" in await remarks.until("closed")
        assert len(remarks) == 1
        assert at_server.messages == [Renew(epoch=1)]
        assert at_server.ends[0].startswith("what came is no message: ")

    run()


@on_loop
async def test_frames_that_are_too_long_cost_the_connection() -> None:
    at_server, remarks = Recorder(), Remarks()
    async with serving(at_server, say=remarks) as server:
        async with raw_peer(server) as peer:
            peer.writer.write(struct.pack(">I", 64 * 1024 + 1))
            await peer.rest()
        await remarks.until("a frame of 65537 bytes, 65536 are allowed")
        raw, peer = await proved(server)
        peer.writer.write(struct.pack(">I", MAX_MESSAGE_BYTES + 1))
        await peer.rest()
        await raw.__aexit__(None, None, None)
        await remarks.until("a frame of 1048577 bytes, 1048576 are allowed")


@on_loop
async def test_a_long_message_may_follow_the_handshake_at_once() -> None:
    class Eager(Recorder):
        def opened(self, connection: Any) -> None:
            super().opened(connection)
            connection.send(Refused(reason="x" * 900_000))

    at_client = Recorder()
    async with pair(Eager(), at_client):
        await at_client.until(lambda: bool(at_client.messages))


def test_loops_in_several_threads_do_not_share_what_they_read() -> None:
    @on_loop
    async def exchange(letter: str) -> None:
        at_client = Recorder()
        sent = Refused(reason=letter * 200_000)
        at_server = Recorder(lambda connection, message: connection.send(message))
        async with pair(at_server, at_client) as (_served, client, _server):
            for _ in range(20):
                client.send(sent)
            await at_client.until(lambda: len(at_client.messages) == 20)
        assert at_client.messages == [sent] * 20

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(exchange, "abc"))


@on_loop
async def test_a_reset_is_told() -> None:
    at_server, remarks = Recorder(), Remarks()
    async with serving(at_server, say=remarks) as server:
        raw, peer = await proved(server)
        await at_server.until(lambda: bool(at_server.connections))
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()
        await at_server.until(lambda: bool(at_server.ends))
        assert at_server.ends == ["connection reset by peer"]
        assert remarks == []
        await raw.__aexit__(None, None, None)


@pytest.mark.parametrize("method", ["opened", "received", "closed"])
def test_an_error_of_the_handler_costs_one_connection_and_is_told_to_the_loop(method: str) -> None:
    raised: list[dict[str, Any]] = []

    @on_loop
    async def run() -> None:
        class Broken(Recorder):
            pass

        def fail(self: Recorder, *arguments: Any) -> None:
            getattr(Recorder, method)(self, *arguments)
            raise RuntimeError("a bug")

        setattr(Broken, method, fail)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: raised.append(context))
        at_server, at_client = Broken(), Recorder()
        async with pair(at_server, at_client) as (_served, client, _server):
            client.send(Renew(epoch=1))
            if method == "closed":
                client.close("enough")
            await at_server.until(lambda: bool(at_server.ends))
        assert len(at_server.ends) == 1

    run()
    assert [str(context["exception"]) for context in raised] == ["a bug"]


@on_loop
async def test_other_messages_can_be_asked_for() -> None:
    class Line(msgspec.Struct, tag=True):
        text: str

    at_server, at_client = Recorder(), Recorder()
    async with pair(at_server, at_client, messages=Line) as (_served, client, _server):
        client.send(Line("hello"))
        await at_server.until(lambda: bool(at_server.messages))
    assert at_server.messages == [Line("hello")]


@on_loop
async def test_longer_messages_can_be_allowed() -> None:
    long = Refused(reason="x" * MAX_MESSAGE_BYTES)
    at_server, at_client = Recorder(), Recorder()
    async with serving(at_server) as server:
        server.longest = 2 * MAX_MESSAGE_BYTES
        client = await connect(
            f"127.0.0.1:{server.port}", at_client, terms(), longest=server.longest
        )
        assert client.send(long)
        await at_server.until(lambda: at_server.messages == [long])
        assert at_server.connections[0].send(long)
        await at_client.until(lambda: at_client.messages == [long])
        client.close("done")
        await at_client.until(lambda: bool(at_client.ends))


@on_loop
async def test_messages_before_the_handshake_is_over_are_not_received() -> None:
    at_server = Recorder()
    async with serving(at_server) as server, raw_peer(server) as peer:
        assert msgspec.convert(await peer.hear(), Challenge).major == MAJOR
        peer.say(Renew(epoch=1))
        assert "what came is no handshake" in (await peer.hear())["reason"]
        await peer.rest()
    assert at_server.messages == []
    assert at_server.connections == []


def test_errors_are_described() -> None:
    assert describe(ConnectionResetError(104, "x")) == "connection reset by peer"
    assert describe(OSError("the name x")) == "the name x"
    assert describe(TimeoutError()) == "no answer in time"
    assert describe(ValueError()) == "ValueError"
