"""Which threads wait for events of which descriptors."""

from __future__ import annotations

import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.inprocess.communication import event_loops
from undaunted.inprocess.communication.sockets import Descriptor, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    assert event_loops.parse_wait(call, machine) == expected


def test_watched_descriptors() -> None:
    expected = [Descriptor(12, 0x232672), Descriptor(7, 0x2A)]
    assert event_loops.parse_watched(WATCHED) == expected
    assert event_loops.parse_watched("pos: 0\ntfd: 3\n\n") == []


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
    assert tid in event_loops.thread_names()
    found = event_loops.waits([tid, threading.get_native_id(), 1 << 22], patience_s=0.05)
    assert list(found) == [tid], "not this thread, which runs, and not one that does not exist"
    assert found[tid] == epoll_fd
    assert epoll_fd in event_loops.epoll_descriptors()
    assert watched.fileno() not in event_loops.epoll_descriptors()
    assert event_loops.watched(epoll_fd) == [describe(watched.fileno())]
    assert event_loops.watched(watched.fileno()) == []
