"""The guard's end of the link to a rank."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from tests.coordinator.wire.talk import on_loop
from tests.inprocess.guard.talk import Changing, Peer, enter, join, page, record
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.guard.rank_link import RankLink


class User(Changing):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []
        self.ends: list[str] = []

    def received(self, message: Any) -> None:
        self.messages.append(message)
        self.changed()

    def closed(self, reason: str) -> None:
        self.ends.append(reason)
        self.changed()


def pair() -> tuple[RankLink, User, Peer]:
    ours, theirs = socket.socketpair()
    user = User()
    return RankLink(ours, user.received, user.closed), user, Peer(theirs)


@on_loop
async def test_messages_go_both_ways_and_the_page_comes_with_the_first() -> None:
    link, user, peer = pair()
    await peer.begin(enter())
    await peer.say(join())
    await user.until(lambda: len(user.messages) == 2)
    assert user.messages == [enter(), join()]
    fd = link.take_page()
    assert os.fstat(fd).st_size == 4096
    assert link.take_page() == -1
    os.close(fd)
    link.send(record())
    link.send(m.Finished(0, 0))
    assert await peer.hear() == record()
    assert await peer.hear() == m.Finished(0, 0)
    link.close()
    link.send(record())
    peer.sock.close()
    assert user.ends == []


@on_loop
async def test_the_end_of_a_rank_is_told_after_what_it_has_said() -> None:
    link, user, peer = pair()
    await peer.say(join())
    peer.sock.close()
    await user.until(lambda: bool(user.ends))
    assert user.messages == [join()]
    assert user.ends == ["it has closed its connection"]
    link.close()


@on_loop
async def test_what_a_process_said_before_it_ended_can_be_taken_in_at_once() -> None:
    link, user, peer = pair()
    await peer.say(join())
    await peer.say(join(epoch=1))
    peer.sock.close()
    link.drain()
    assert user.messages == [join(), join(epoch=1)]
    assert user.ends == ["it has closed its connection"]


@on_loop
async def test_garbage_ends_the_channel() -> None:
    for garbage, reason in (
        (struct.pack(">I", m.MAX_MESSAGE_BYTES + 1), "it has sent a frame of 8388609 bytes"),
        (struct.pack(">I", 3) + b"abc", "what it has sent is no message"),
        (struct.pack(">I", 1) + b"\xc1", "what it has sent is no message"),
    ):
        _channel, user, peer = pair()
        peer.sock.sendall(garbage)
        await user.until(lambda user=user: bool(user.ends))
        assert user.ends[0].startswith(reason)
        peer.sock.close()


@on_loop
async def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    link, user, peer = pair()
    fds = [page() for _ in range(4)]
    await peer.say(enter(), *fds)
    await user.until(lambda: bool(user.messages))
    for fd in fds:
        os.close(fd)
    link.close()  # the leak checks see what is left
    peer.sock.close()


@on_loop
async def test_a_rank_that_does_not_read_is_let_go_when_too_much_waits() -> None:
    link, user, peer = pair()
    big = m.End(0, "abort", "x" * 1_000_000)
    for _ in range(12):
        link.send(big)
    assert user.ends
    assert user.ends[0].startswith("it does not read")
    peer.sock.close()


@on_loop
async def test_what_is_more_than_the_socket_takes_is_delivered() -> None:
    link, _user, peer = pair()
    big = m.End(0, "abort", "x" * 4_000_000)
    link.send(big)
    link.send(record())
    assert await peer.hear() == big
    assert await peer.hear() == record()
    link.close()
    peer.sock.close()
