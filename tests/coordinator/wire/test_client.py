from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tests.coordinator.wire.talk import DEADLINE_S, Recorder, on_loop, serving, terms
from tests.ports import free_ports
from undaunted.coordinator.wire import client as module
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.sockets import SocketAddress


def silent_listener() -> socket.socket:
    """The kernel answers there, nobody else."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@on_loop
async def test_nobody_listens() -> None:
    port = free_ports(1)
    with pytest.raises(WireError, match=f"^127.0.0.1:{port}: connection refused$") as caught:
        await connect(f"127.0.0.1:{port}", Recorder(), terms())
    assert not caught.value.refused


@on_loop
async def test_a_server_that_says_nothing() -> None:
    with silent_listener() as listener:
        port = listener.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(WireError, match="within 50 ms"):
            await connect(f"127.0.0.1:{port}", Recorder(), terms(), timeout_s=0.05)
        assert time.monotonic() - began < DEADLINE_S / 2


@on_loop
async def test_a_server_that_is_something_else() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WireError, match="a frame of 1213486160 bytes"):
            await connect(f"127.0.0.1:{port}", Recorder(), terms(), timeout_s=DEADLINE_S)


@on_loop
async def test_a_server_that_hangs_up() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WireError, match="the other side closed the connection"):
            await connect(f"127.0.0.1:{port}", Recorder(), terms(), timeout_s=DEADLINE_S)


@on_loop
async def test_given_up_by_its_caller() -> None:
    with silent_listener() as listener:
        port = listener.getsockname()[1]
        handler = Recorder()
        attempt = asyncio.create_task(
            connect(f"127.0.0.1:{port}", handler, terms(), timeout_s=DEADLINE_S)
        )
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        with accepted:
            assert await asyncio.get_running_loop().sock_recv(accepted, 1) == b""
        assert handler.connections == []


@pytest.mark.parametrize("address", ["node0", "127.0.0.1:0", ":29400"])
def test_addresses_that_nobody_can_connect_to(address: str) -> None:
    @on_loop
    async def run() -> None:
        with pytest.raises(ValueError, match=address):
            await connect(address, Recorder(), terms())

    run()


@on_loop
async def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def both(*_arguments: object) -> list[SocketAddress]:
        return [
            SocketAddress(socket.AF_INET, ("127.0.0.1", free_ports(1))),
            SocketAddress(socket.AF_INET, ("127.0.0.1", server.port)),
        ]

    handler = Recorder()
    async with serving(Recorder()) as server:
        monkeypatch.setattr(module, "resolve", both)
        connection = await connect("node0:1", handler, terms(), timeout_s=DEADLINE_S)
        connection.close("enough")
        await handler.until(lambda: handler.ends == ["enough"])


@on_loop
async def test_a_socket_that_met_itself_is_no_connection() -> None:
    # Binding and connecting to the same port makes happen what otherwise happens by chance.
    class Bound(socket.socket):
        def setblocking(self, flag: bool) -> None:
            super().setblocking(flag)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", port))

    port = free_ports(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.socket, "socket", Bound)
        with pytest.raises(WireError, match="connection refused"):
            await connect(f"127.0.0.1:{port}", Recorder(), terms(), timeout_s=DEADLINE_S)
