"""Connections of this process: what they are, and their end."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.base import open_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, ...]]:
    """A listening socket, a connection to it, and the other end of that."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with (
        socket.create_server((request.param, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as near,
        server.accept()[0] as far,
    ):
        yield server, near, far


def described(sock: socket.socket) -> open_sockets.Descriptor:
    found = open_sockets.describe(sock.fileno())
    assert found is not None
    return found


def test_a_shut_down_connection_wakes_who_waits_in_it(pair: tuple[socket.socket, ...]) -> None:
    _, near, far = pair
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(near.recv(1)))
    thread.start()
    assert open_sockets.shut_down(described(near))
    thread.join(10)
    assert received == [b""]
    assert far.recv(1) == b""
    assert open_sockets.shut_down(described(near)), "a second time does no harm"


def test_an_end_of_reading_is_not_seen_at_the_other_end(pair: tuple[socket.socket, ...]) -> None:
    _, near, far = pair
    far.sendall(b"sent before")
    kept = open_sockets.end_reading(described(near))
    assert kept is not None
    with kept:
        assert near.recv(100) == b"sent before"
        assert near.recv(1) == b""
        near.sendall(b"x")
        near.close()
        assert far.recv(1) == b"x"
        far.sendall(b"nobody reads this")
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(1)


def test_only_of_connections_reading_is_ended(pair: tuple[socket.socket, ...]) -> None:
    server, near, _ = pair
    assert open_sockets.end_reading(described(server)) is None
    assert open_sockets.end_reading(open_sockets.Descriptor(near.fileno(), 1)) is None
    assert open_sockets.end_reading(open_sockets.Descriptor(1 << 20, 1)) is None


def test_a_listening_socket_is_left_alone(pair: tuple[socket.socket, ...]) -> None:
    server = pair[0]
    assert not open_sockets.shut_down(described(server))
    with socket.create_connection(server.getsockname()[:2]), server.accept()[0]:
        pass


def test_a_descriptor_that_stands_for_something_new_is_left_alone(
    pair: tuple[socket.socket, ...],
) -> None:
    _, near, far = pair
    stale = open_sockets.Descriptor(near.fileno(), described(near).inode + 1)
    assert not open_sockets.shut_down(stale)
    far.sendall(b"x")
    assert near.recv(1) == b"x"


def test_what_is_no_connection_is_left_alone() -> None:
    reader, writer = os.pipe()
    near, far = socket.socketpair()
    try:
        for fd in (reader, near.fileno()):
            descriptor = open_sockets.describe(fd)
            assert descriptor is not None
            assert not open_sockets.shut_down(descriptor)
            assert open_sockets.listening_address(descriptor) is None
            assert open_sockets.peer(descriptor) is None
            assert not open_sockets.is_established(descriptor)
            assert open_sockets.is_tcp_or_pipe(descriptor) == (fd == reader)
        near.sendall(b"x")
        assert far.recv(1) == b"x"
    finally:
        near.close()
        far.close()
        os.close(reader)
        os.close(writer)
    closed = open_sockets.Descriptor(reader, 1)
    assert not open_sockets.shut_down(closed)
    assert not open_sockets.is_tcp_or_pipe(closed)
    assert open_sockets.describe(reader) is None


def test_ports_and_addresses(pair: tuple[socket.socket, ...]) -> None:
    server, near, far = pair
    host, port = server.getsockname()[:2]
    assert open_sockets.listening_address(described(server)) == (host, port)
    assert open_sockets.listening_address(described(near)) is None
    assert open_sockets.peer(described(near)) == (host, port)
    assert open_sockets.peer(described(far)) == near.getsockname()[:2]
    assert open_sockets.peer(described(server)) is None
    assert open_sockets.is_tcp_or_pipe(described(near))


def test_all_sockets(pair: tuple[socket.socket, ...]) -> None:
    assert {described(one) for one in pair} <= open_sockets.all_sockets()
