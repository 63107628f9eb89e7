from __future__ import annotations

import os
import socket

import pytest

from undaunted.base.descriptors import receive


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
