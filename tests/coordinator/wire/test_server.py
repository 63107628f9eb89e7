from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.wire.talk import (
    DEADLINE_S,
    TOKEN,
    Raw,
    Recorder,
    Remarks,
    on_loop,
    pair,
    raw_peer,
    serving,
    terms,
)
from undaunted.base.unix_sockets import listen_at
from undaunted.coordinator.protocol import MAJOR, Beat, Challenge, Proof, Renew
from undaunted.coordinator.wire import server as module
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import ClientHandshake
from undaunted.coordinator.wire.server import Complaints, Server
from undaunted.coordinator.wire.sockets import Peer

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.coordinator.wire.sockets import SocketAddress


def echo(connection: Any, message: Any) -> None:
    connection.send(Beat(epoch=message.epoch))


async def talk_once(server: Server, **changes: Any) -> None:
    """A good client gets its answer."""
    handler = Recorder()
    client = await connect(
        f"127.0.0.1:{server.port}", handler, terms(**changes), timeout_s=DEADLINE_S
    )
    client.send(Renew(epoch=5))
    await handler.until(lambda: handler.messages == [Beat(epoch=5)])
    client.close("enough")
    await handler.until(lambda: bool(handler.ends))


@on_loop
async def test_two_servers_at_once_do_not_know_each_other() -> None:
    one, other = Recorder(echo), Recorder(echo)
    async with (
        serving(one) as first,
        serving(other, terms=terms(run_id="job8")) as second,
    ):
        assert first.port != second.port
        await talk_once(first)
        await talk_once(second, run_id="job8")
        with pytest.raises(WireError, match="belongs to job job8") as caught:
            await connect(f"127.0.0.1:{first.port}", Recorder(), terms(run_id="job8"))
        assert caught.value.refused
    assert len(one.messages) == len(other.messages) == 1


@on_loop
async def test_names_and_both_families() -> None:
    async with serving(Recorder(echo), address="localhost:0") as server:
        assert {address.host for address in server.addresses} <= {"127.0.0.1", "::1"}
        for address in server.addresses:
            handler = Recorder()
            client = await connect(str(address), handler, terms(), timeout_s=DEADLINE_S)
            client.close("enough")
            await handler.until(lambda: bool(handler.ends))  # noqa: B023


@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_without_a_token_only_loopback_is_listened_at(address: str) -> None:
    @on_loop
    async def run() -> None:
        server = Server(address, Recorder(), terms(token=b""))
        with pytest.raises(WireError, match="without a token only this machine") as caught:
            await server.start()
        assert "UNDAUNTED_TOKEN or --coordinator-token-file" in str(caught.value)

    run()


@on_loop
async def test_without_a_token_on_loopback() -> None:
    async with serving(Recorder(echo), terms=terms(token=b"")) as server:
        await talk_once(server, token=b"")


@on_loop
async def test_an_address_in_use_is_named() -> None:
    async with serving(Recorder()) as server:
        second = Server(f"127.0.0.1:{server.port}", Recorder(), terms())
        with pytest.raises(WireError, match=f"listen at 127.0.0.1:{server.port}: address already"):
            await second.start()
        assert second.port == 0


def test_what_is_no_address() -> None:
    with pytest.raises(ValueError, match="give HOST:PORT"):
        Server("node0", None, terms())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token": b"another-token-xyz"}, "node n3 has another token"),
        ({"run_id": "job8"}, "node n3 belongs to job job8"),
        ({"major": MAJOR + 1, "build": "9"}, rf"node n3 runs undaunted 9 \(protocol {MAJOR + 1}\)"),
        ({"major": 0, "build": "0.0.1"}, r"node n3 runs undaunted 0.0.1 \(protocol 0\)"),
    ],
)
def test_both_sides_say_why_they_do_not_fit(changes: dict[str, Any], says: str) -> None:
    @on_loop
    async def run() -> None:
        remarks = Remarks()
        async with serving(Recorder(echo), say=remarks) as server:
            with pytest.raises(WireError, match=says) as caught:
                await connect(f"127.0.0.1:{server.port}", Recorder(), terms(**changes))
            assert caught.value.refused
            assert "TLS" not in str(caught.value)
            line = await remarks.until("closed: ")
            assert line.partition("closed: ")[2] in str(caught.value)
            await talk_once(server)
        assert len(remarks) == 1
        assert TOKEN.decode() not in line

    run()


@on_loop
async def test_a_recorded_handshake_opens_nothing() -> None:
    handler, remarks = Recorder(), Remarks()
    async with serving(handler, say=remarks) as server:
        async with raw_peer(server) as peer:
            challenge = msgspec.msgpack.encode(await peer.hear())
            recorded = ClientHandshake(terms(), os.urandom(32)).received(challenge).send
            assert recorded is not None
            peer.say(recorded)
            assert (await peer.hear())["type"] == "Accepted"
        async with raw_peer(server) as peer:
            await peer.hear()
            peer.say(recorded)
            assert "another token" in (await peer.hear())["reason"]
            assert await peer.rest() == b""
        await remarks.until("another token")
    assert len(handler.connections) == 1


@on_loop
async def test_every_connection_has_a_challenge_of_its_own() -> None:
    async with serving(Recorder()) as server:
        nonces = set()
        for _ in range(3):
            async with raw_peer(server) as peer:
                nonces.add(msgspec.convert(await peer.hear(), Challenge).nonce)
        assert len(nonces) == 3


@on_loop
async def test_a_handshake_has_a_deadline() -> None:
    remarks = Remarks()
    async with serving(Recorder(echo), say=remarks, handshake_s=0.05) as server:
        async with raw_peer(server) as peer:
            peer.writer.write(b"\0\0")
            await peer.rest()
        await remarks.until("no handshake within 50 ms")
        server._handshake_s = DEADLINE_S
        await talk_once(server)


@on_loop
async def test_the_oldest_half_open_connections_are_closed_first() -> None:
    remarks = Remarks()
    async with serving(Recorder(echo), say=remarks, handshake_s=DEADLINE_S) as server:
        server.nodes = 4
        peers = []
        for _ in range(64 + 2 * 4 + 1):
            peers.append(Raw(*await asyncio.open_connection("127.0.0.1", server.port)))
            await peers[-1].hear()
        assert await peers[0].rest() == b""
        assert not peers[1].reader.at_eof()
        assert len(server._half_open) == 72
        await remarks.until("it says nothing, and 72 connections are in their handshakes")
        await talk_once(server)
        assert await peers[1].rest() == b""
        for peer in peers:
            await peer.close()


def test_a_thousand_connections_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets are made without a loop, so that only the server's are bounded by the server."""

    @on_loop
    async def run() -> None:
        monkeypatch.setattr(module, "_YOUNG_S", 0.01)
        wanted = 1000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < wanted + 500:
            if hard != resource.RLIM_INFINITY and hard < wanted + 500:
                pytest.skip(f"only {hard} descriptors are allowed here")
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + 500, hard))
        remarks = Remarks()
        peers: list[socket.socket] = []
        try:
            async with serving(Recorder(echo), say=remarks) as server:
                for number in range(wanted):
                    peer = socket.socket()
                    peers.append(peer)
                    peer.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(peer, ("127.0.0.1", server.port))
                    if number % 100 == 99:
                        began = time.monotonic()
                        await talk_once(server)
                        assert time.monotonic() - began < DEADLINE_S / 2
                assert len(server._half_open) <= 66
                assert len(server._connections) <= 66 + module._ACCEPTS_IN_A_ROW
            assert len(remarks) <= 7  # five, then the count
            assert "more of these within 1 min 00 s" in remarks[-1]
        finally:
            for peer in peers:
                peer.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    run()


@on_loop
async def test_a_crowd_of_good_clients_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """More at once than may be half-open: none is dropped for another."""
    monkeypatch.setattr(module, "_YOUNG_S", DEADLINE_S)  # a busy machine may take long for each
    handler, remarks = Recorder(), Remarks()
    async with serving(handler, say=remarks) as server:
        at_clients = Recorder()
        address = f"127.0.0.1:{server.port}"
        clients = await asyncio.gather(
            *(connect(address, at_clients, terms(), timeout_s=DEADLINE_S) for _ in range(200))
        )
        await handler.until(lambda: len(handler.connections) == 200)
        assert server._half_open == {}
        for client in clients:
            client.close("enough")
        await at_clients.until(lambda: len(at_clients.ends) == 200)
    assert remarks == []


@on_loop
async def test_half_open_connections_leave_descriptors_for_others() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(Recorder()) as server:
        server.nodes = 10_000
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
        try:
            assert server._half_open_limit() == 100
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_loop
async def test_without_descriptors_accepting_pauses_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.02)
    remarks = Remarks()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(Recorder(echo), say=remarks) as server:
        peer = socket.socket()
        peer.setblocking(False)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        taken = [os.dup(0) for _ in range(highest)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(peer, ("127.0.0.1", server.port))
            await remarks.until("cannot accept connections at 127.0.0.1:0: too many open files")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken:
                os.close(fd)
        assert len(await loop.sock_recv(peer, 100)) > 40  # its challenge
        await talk_once(server)
        peer.close()


@on_loop
async def test_other_errors_of_accepting() -> None:
    errors = [errno.ECONNABORTED, errno.EINTR, errno.EPROTO]

    class Listener(socket.socket):
        def accept(self) -> Any:
            if errors:
                number = errors.pop()
                raise OSError(number, os.strerror(number))
            return super().accept()

    remarks = Remarks()
    server = Server("127.0.0.1:0", Recorder(echo), terms(), say=remarks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAUSE_S", 0.01)

        def listen(places: list[SocketAddress]) -> list[socket.socket]:
            listener = Listener(places[0].family, socket.SOCK_STREAM)
            listener.bind(places[0].sockaddr)
            listener.listen()
            listener.setblocking(False)
            return [listener]

        patch.setattr(module, "listen", listen)
        await server.start()
        await talk_once(server)
        await server.close("the test is over")
    assert remarks == [f"cannot accept connections at 127.0.0.1:0: {os.strerror(71).lower()}"]


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_disturb_nobody(seed: int) -> None:
    """Of several kinds, before and after the proof; a good connection goes on meanwhile."""
    numbers = random.Random(seed)

    def noise() -> bytes:
        size = numbers.choice((1, 4, 5, 50, 300))
        head = numbers.choice((b"", b"\0\0\0\x05", b"\0\0", (size).to_bytes(4, "big")))
        return head + numbers.randbytes(size)

    @on_loop
    async def run() -> None:
        at_server, at_client = Recorder(echo), Recorder()
        async with pair(at_server, at_client) as (_served, client, server):
            for number in range(20):
                async with raw_peer(server) as peer:
                    challenge = msgspec.msgpack.encode(await peer.hear())
                    if numbers.random() < 0.5:
                        proof = ClientHandshake(terms(), numbers.randbytes(32)).received(challenge)
                        peer.say(proof.send or b"")
                    for _ in range(numbers.randrange(5)):
                        peer.writer.write(noise())
                client.send(Renew(epoch=number))
                await at_client.until(lambda: len(at_client.messages) > number)  # noqa: B023
        assert [message.epoch for message in at_client.messages] == list(range(20))

    run()


@on_loop
async def test_a_port_scanner_is_not_worth_a_line() -> None:
    handler, remarks = Recorder(echo), Remarks()
    async with serving(handler, say=remarks) as server:
        for _ in range(3):
            async with raw_peer(server) as peer:
                await peer.hear()
        await talk_once(server)
    assert remarks == []


@on_loop
async def test_closing_ends_all_connections_and_frees_the_port() -> None:
    at_server, at_client = Recorder(), Recorder()
    server = Server("127.0.0.1:0", at_server, terms())
    await server.start()
    port = server.port
    client = await connect(f"127.0.0.1:{port}", at_client, terms(), timeout_s=DEADLINE_S)
    silent = Raw(*await asyncio.open_connection("127.0.0.1", port))
    await silent.hear()
    await server.close("the job is over")
    assert at_server.ends == ["the job is over"]
    assert await silent.rest() == b""
    await at_client.until(lambda: bool(at_client.ends))
    assert not client.send(Renew(epoch=1))
    await silent.close()
    again = Server(f"127.0.0.1:{port}", at_server, terms())
    await again.start()
    await again.close("once more")
    await again.close("and more")


@on_loop
async def test_a_nonce_of_another_length_is_refused_by_a_live_server() -> None:
    async with serving(Recorder()) as server, raw_peer(server) as peer:
        await peer.hear()
        peer.say(Proof(major=MAJOR, minor=0, build="x", run_id="job7", nonce=b"short", mac=b"x"))
        assert (await peer.hear())["reason"] == "what came is no handshake"


@pytest.fixture
def unix_address() -> str:
    return f"@undaunted-test-{uuid.uuid4()}"


@on_loop
async def test_processes_of_one_user_need_no_port(unix_address: str) -> None:
    at_server, at_client = Recorder(echo), Recorder()
    no_token = terms(token=b"")
    async with serving(at_server, address=unix_address, terms=no_token) as server:
        assert server.port == 0
        with pytest.raises(WireError, match="address already in use"):
            await Server(unix_address, at_server, no_token).start()
        client = await connect(unix_address, at_client, no_token, timeout_s=DEADLINE_S)
        client.send(Renew(epoch=5))
        await at_client.until(lambda: at_client.messages == [Beat(epoch=5)])
        client.close("enough")
        await at_client.until(lambda: bool(at_client.ends))


@on_loop
async def test_other_users_have_no_access_to_a_unix_socket(
    unix_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks = Remarks()
    async with serving(Recorder(), address=unix_address, say=remarks):
        other = os.geteuid() + 1
        monkeypatch.setattr("undaunted.coordinator.wire.sockets.peer", lambda _: Peer(7, other))
        with pytest.raises(WireError, match=f"user {other} listens there"):
            await connect(unix_address, Recorder(), terms(), timeout_s=DEADLINE_S)
        monkeypatch.setattr(module, "other_end", lambda _: Peer(7, other))
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect("\0" + unix_address[1:])
            await remarks.until(f"connection from @pid 7 closed: user {other} may not connect")


@on_loop
async def test_a_socket_that_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, at_server = str(tmp_path / "socket"), Recorder(echo)
    server = Server("@name", at_server, terms(token=b""))
    listening = listen_at(path, socket.SOCK_STREAM, 8)
    listening.setblocking(False)
    await server.start(listening)
    try:
        for user in (os.geteuid(), 0):
            monkeypatch.setattr(module, "other_end", lambda _, user=user: Peer(7, user))
            client = Recorder()
            connection = await connect(path, client, terms(token=b"", run_id=""))
            connection.send(Renew(epoch=5))
            await client.until(lambda client=client: client.messages == [Beat(epoch=5)])
            connection.close("enough")
            await client.until(lambda client=client: bool(client.ends))
        assert str(at_server.connections[0].peer) == "@pid 7"
        with pytest.raises(WireError) as told:
            await connect(path + "-2", Recorder(), terms(), timeout_s=DEADLINE_S)
        assert told.value.number == errno.ENOENT
    finally:
        await server.close("the test is over")


@on_loop
async def test_a_unix_socket_that_is_not_there(unix_address: str) -> None:
    with pytest.raises(WireError, match=f"{unix_address}: connection refused"):
        await connect(unix_address, Recorder(), terms(), timeout_s=DEADLINE_S)


@on_loop
async def test_connections_together_hold_no_more_than_their_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 300_000)
    remarks, clients = Remarks(), [Recorder() for _ in range(3)]
    async with serving(Recorder(), say=remarks) as server:
        for client in clients:
            connection = await connect(f"127.0.0.1:{server.port}", client, terms())
            half = (900_000).to_bytes(4, "big") + bytes(140_000)
            connection._transport.write(half)  # half of a message, which no `send` would do
        await remarks.until("of messages that are not complete")
        await clients[2].until(lambda: bool(clients[2].ends))
        assert not clients[0].ends


def test_some_are_said_and_the_others_counted() -> None:
    complaints = Complaints(lines=2, window_s=60)
    assert complaints.note("a", 100) == ["a"]
    assert complaints.due_s() is None
    assert complaints.note("b", 110) == ["b"]
    assert complaints.note("c", 120) == []
    assert complaints.note("d", 130) == []
    assert complaints.due_s() == 160
    assert complaints.flush(160) == ["2 more of these within 1 min 00 s, the last: d"]
    assert complaints.due_s() is None
    assert complaints.flush(161) == []


def test_the_line_with_the_count_is_one_of_the_next_window() -> None:
    complaints = Complaints(lines=2, window_s=60)
    for now in (0, 1, 2):
        complaints.note("x", now)
    assert len(complaints.flush(60)) == 1
    assert complaints.note("y", 61) == ["y"]
    assert complaints.note("z", 62) == []


def test_a_new_window_begins_with_a_complaint() -> None:
    complaints = Complaints(lines=1, window_s=60)
    assert complaints.note("a", 0) == ["a"]
    assert complaints.note("b", 1000) == ["b"]
    assert complaints.note("c", 1059) == []
    assert complaints.note("d", 1061) == ["1 more of these within 1 min 00 s, the last: c"]


@given(st.lists(st.floats(0, 50), max_size=80))
def test_every_complaint_is_said_or_counted_and_windows_are_bounded(pauses: list[float]) -> None:
    complaints = Complaints(lines=3, window_s=60)
    now = 0.0
    said: list[float] = []
    counted = 0
    for pause in pauses:
        now += pause
        for line in complaints.note("x", now):
            said.append(now)
            counted += 1 if line == "x" else int(line.split()[0])
    for line in complaints.flush(now + 60):
        counted += int(line.split()[0])
    assert counted == len(pauses)
    for first in said:
        assert sum(first <= at < first + 60 for at in said) <= 6
