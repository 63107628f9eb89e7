"""The first words of a rank and its guard."""

from __future__ import annotations

import socket
import time

import pytest

from undaunted.inprocess.guard import startup
from undaunted.inprocess.guard.startup import Begin, Ready, Refused


def test_words_go_both_ways_and_nothing_more_is_read() -> None:
    begin = Begin(job_rank=1, world_size=2, hosts=False, token=b"secret")
    with _pair() as (ours, theirs):
        startup.send(ours, begin)
        ours.sendall(b"more")
        assert startup.receive(theirs, Begin) == begin
        assert theirs.recv(10) == b"more"
        startup.send(theirs, Ready(3, 7))
        startup.send(theirs, Refused("no"))
        deadline = time.monotonic() + 60
        assert startup.receive(ours, startup.Answer, deadline) == Ready(3, 7)
        assert startup.receive(ours, startup.Answer, deadline) == Refused("no")


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\0\5abc"])
def test_the_end_is_told_wherever_it_comes(said: bytes) -> None:
    with _pair() as (ours, theirs):
        ours.sendall(said)
        ours.close()
        assert startup.receive(theirs, Begin) is None


@pytest.mark.parametrize("said", [b"\0\0\0\0", b"\0\0\0\1\xc1", b"\xff\0\0\0"])
def test_garbage(said: bytes) -> None:
    with _pair() as (ours, theirs):
        ours.sendall(said)
        with pytest.raises(ValueError, match=r"frame of|data|MessagePack"):
            startup.receive(theirs, Begin)


def test_an_answer_has_a_deadline() -> None:
    with _pair() as (ours, _), pytest.raises(TimeoutError):
        startup.receive(ours, startup.Answer, time.monotonic() + 0.01)


class _pair:  # noqa: N801 - used like a function
    def __enter__(self) -> tuple[socket.socket, socket.socket]:
        self._both = socket.socketpair()
        return self._both

    def __exit__(self, *_: object) -> None:
        for sock in self._both:
            sock.close()
