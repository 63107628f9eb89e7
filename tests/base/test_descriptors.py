from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from undaunted.base.descriptors import identity, is_still, move_high, receive

if TYPE_CHECKING:
    from collections.abc import Callable


def test_descriptors_come_with_their_bytes_and_are_not_inherited() -> None:
    near, far = socket.socketpair()
    with near, far:
        reading, writing = os.pipe()
        socket.send_fds(near, [b"two"], [reading, writing])
        data, fds, cut = receive(far, 100, 4)
        assert (data, len(fds), cut) == (b"two", 2, False)
        assert not any(os.get_inheritable(fd) for fd in fds)
        os.write(fds[1], b"x")
        assert os.read(fds[0], 1) == b"x"
        for fd in (reading, writing, *fds):
            os.close(fd)


def test_the_end_and_silence_are_told_apart() -> None:
    near, far = socket.socketpair()
    with far:
        far.setblocking(False)
        with near, pytest.raises(BlockingIOError):
            receive(far, 100, 1)
        assert receive(far, 100, 1) == (b"", [], False)


def test_a_packet_that_is_too_long_is_cut() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        near.send(b"12345")
        assert receive(far, 3, 1) == (b"123", [], True)


def test_a_descriptor_that_was_moved_is_out_of_the_way_and_not_inherited() -> None:
    reading, writing = os.pipe()
    known = identity(writing)
    moved = move_high(writing)
    try:
        assert moved >= 100
        assert not os.get_inheritable(moved)
        assert is_still(moved, known)
        assert not is_still(writing, known)
    finally:
        os.close(reading)
        os.close(moved)


KINDS: list[Callable[[], int]] = [
    lambda: os.eventfd(0),
    lambda: os.memfd_create("x"),
    lambda: socket.socket().detach(),
]


@pytest.mark.parametrize("make", KINDS, ids=["eventfd", "memfd", "socket"])
def test_files_of_the_same_kind_have_their_own_identities(make: Callable[[], int]) -> None:
    with contextlib.ExitStack() as undo:
        numbers = [make(), make()]
        for number in numbers:
            undo.callback(os.close, number)
        one, other = map(identity, numbers)
        assert one != other
        copy = os.dup(numbers[0])
        undo.callback(os.close, copy)
        assert identity(copy) == one == identity(numbers[0], os.getpid())


def test_no_descriptor_has_no_identity() -> None:
    assert identity(-1) == identity(999_999) == ""
    assert not is_still(-1, "")
