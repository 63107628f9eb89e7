"""Finding and ending connections of gloo; with several ranks: test_job."""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.base import open_sockets
from undaunted.base.open_sockets import Descriptor, describe
from undaunted.inprocess.communication import gloo

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def no_waits(*_: Any) -> dict[int, int]:
    """No thread is in a wait: all have something to do."""
    return {}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("how", ["named", "unnamed", "busy"])
def test_the_loop_of_a_group_is_found(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where threads have no names, or no time to wait: by what they watch."""
    if how == "unnamed":
        monkeypatch.setattr(gloo, "_LOOP_NAME", "other")
    if how == "busy":
        monkeypatch.setattr(gloo, "waits", no_waits)
    (loop,) = gloo.find_loops()
    assert [address[0] for one in loop if (address := open_sockets.listening_address(one))]
    assert all(open_sockets.is_tcp_or_pipe(one) for one in loop)
    assert not caplog.text


@pytest.mark.usefixtures("group")
def test_a_listening_socket_survives_an_abort() -> None:
    gloo.abort()
    assert len(gloo.find_loops()) == 1


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Three connections in a loop of gloo; the other ends are every second one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends: list[socket.socket] = []
        for _ in range(3):
            ends += [socket.create_connection(server.getsockname()), server.accept()[0]]
    loop = [open_sockets.describe(one.fileno()) for one in ends[::2]]
    monkeypatch.setattr(gloo, "find_loops", lambda: [loop])
    yield ends
    gloo.release()
    for one in ends:
        one.close()


def test_peers_see_no_end_before_the_release(connections: list[socket.socket]) -> None:
    gloo.abort()
    for near, far in zip(connections[::2], connections[1::2], strict=True):
        assert near.recv(1) == b""
        near.close()
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(1)
    gloo.release()
    for far in connections[1::2]:
        far.settimeout(10)
        assert far.recv(1) == b""


def test_with_too_few_descriptors_all_connections_are_ended(
    connections: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    end_reading = open_sockets.end_reading

    def fails_at_two(descriptor: open_sockets.Descriptor) -> socket.socket | None:
        if len(gloo._kept) == 2:
            raise OSError(errno.EMFILE, "too many")
        return end_reading(descriptor)

    monkeypatch.setattr(open_sockets, "end_reading", fails_at_two)
    gloo.abort()
    assert [near.recv(1) for near in connections[::2]] == [b""] * 3


def test_without_groups_there_is_nothing() -> None:
    assert gloo.find_loops() == []
    gloo.abort()
    gloo.visit(4)


@pytest.mark.usefixtures("group")
def test_visitors_have_the_numbers_of_all_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        descriptor = open_sockets.describe(server.fileno())
        monkeypatch.setattr(gloo, "find_loops", lambda: [[descriptor]])
        gloo.visit(3)
        said = []
        for _ in range(3):
            with server.accept()[0] as visitor:
                said.append(int.from_bytes(visitor.recv(8), "little"))
        assert said == [0, 1, 2]
        gloo.visit(3, timeout_s=0)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_loop_that_cannot_be_looked_at_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "undaunted")
    # A thread of its own, as those of gloo get their name a moment after they begin.
    monkeypatch.setattr(gloo, "thread_names", lambda: {1: gloo._LOOP_NAME})
    monkeypatch.setattr(gloo, "waits", no_waits)
    monkeypatch.setattr(gloo, "epoll_descriptors", list)
    assert gloo.find_loops() == []
    assert "event loops of gloo cannot be looked at" in caplog.text


@pytest.mark.parametrize(("value", "expected"), [("", False), ("0", False), ("1", True)])
def test_late_connections(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", value)
    assert gloo.connects_late() == expected


WATCHED = """pos:	0
flags:	02
mnt_id:	17
ino:	1038
tfd:       12 events:       19 data:     562a0da61ac0  pos:0 ino:232672 sdev:9
tfd:        7 events: 80000019 data:     562a0da66bd8  pos:0 ino:2a sdev:f
"""


@pytest.mark.parametrize(
    ("call", "machine", "expected"),
    [
        ("232 0xa 0x7ff8 0x40 0xa 0x0 0x0 0x7f 0x7f\n", "x86_64", 10),
        ("281 0x3 0x7f 0x400 0xffffffff 0x0 0x8 0x7f 0x7f", "x86_64", 3),
        ("22 0xa 0x7ff8 0x40 0xa 0x0 0x0 0x7f 0x7f", "aarch64", 10),
        ("22 0xa 0x7ff8 0x40 0xa 0x0 0x0 0x7f 0x7f", "x86_64", None),
        ("232 0xa 0x7ff8 0x40 0xa 0x0 0x0 0x7f 0x7f", "unknown", None),
        ("0 0x0 0x7f 0x2000 0x0 0x0 0x0 0x7f 0x7f", "x86_64", None),
        ("running", "x86_64", None),
        ("-1 0x7f 0x7f", "x86_64", None),
        ("", "x86_64", None),
    ],
)
def test_system_calls(call: str, machine: str, expected: int | None) -> None:
    assert gloo.parse_wait(call, machine) == expected


def test_watched_descriptors() -> None:
    expected = [Descriptor(12, 0x232672), Descriptor(7, 0x2A)]
    assert gloo.parse_watched(WATCHED) == expected
    assert gloo.parse_watched("pos: 0\ntfd: 3\n\n") == []


@pytest.fixture
def loop() -> Iterator[tuple[int, int, socket.socket]]:
    """A thread in epoll_wait: its id, its epoll descriptor, what it watches."""
    near, far = socket.socketpair()
    with near, far, select.epoll() as epoll:
        epoll.register(near, select.EPOLLIN)
        thread = threading.Thread(target=lambda: epoll.poll(30))
        thread.start()
        assert thread.native_id is not None
        try:
            yield thread.native_id, epoll.fileno(), near
        finally:
            far.sendall(b"x")
            thread.join(30)


def test_a_thread_that_waits_is_found(loop: tuple[int, int, socket.socket]) -> None:
    tid, epoll_fd, watched = loop
    assert tid in gloo.thread_names()
    assert gloo.waits([tid], patience_s=30.0), "it has begun to wait"
    found = gloo.waits([tid, threading.get_native_id(), 1 << 22], patience_s=0.05)
    assert list(found) == [tid], "not this thread, which runs, and not one that does not exist"
    assert found[tid] == epoll_fd
    assert epoll_fd in gloo.epoll_descriptors()
    assert watched.fileno() not in gloo.epoll_descriptors()
    assert gloo.watched(epoll_fd) == [describe(watched.fileno())]
    assert gloo.watched(watched.fileno()) == []
