"""Messages and descriptors over a socket."""

from __future__ import annotations

import os
import socket

import pytest

from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.writer.connection import Connection
from undaunted.checkpointing.writer.messages import (
    Arena,
    Cancel,
    Failed,
    FromWriter,
    ToWriter,
    Write,
)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    pair = Connection(ours, FromWriter), Connection(theirs, ToWriter)
    yield pair
    for end in pair:
        end.close()
        end.close()


def test_messages_with_descriptors_in_order(ends) -> None:
    trainer, writer = ends
    pipes = [os.pipe() for _ in range(2)]
    trainer.send(Cancel())
    trainer.send(Arena(0, 5), pipes[0][0])
    trainer.send(Arena(1, 6), pipes[1][0])
    found = []
    while messages := writer.receive():
        found += messages
    assert found == [Cancel(), Arena(0, 5), Arena(1, 6)]
    for ours, theirs in pipes:
        os.write(theirs, b"x")
        fd = writer.fds.popleft()
        assert os.read(fd, 1) == b"x"
        assert not os.get_inheritable(fd)
        for each in (ours, theirs, fd):
            os.close(each)


def test_what_does_not_fit_is_sent_later(ends) -> None:
    trainer, writer = ends
    ours, theirs = os.pipe()
    files = [Image("x" * 1000, 0, 0)] * 2000
    trainer.send(Write(1, 0, "t", files, 4096))
    trainer.send(Arena(0, 5), ours)
    assert trainer.waits_to_send
    os.close(ours)
    found = []
    while trainer.waits_to_send or len(found) < 2:
        found += writer.receive()
        trainer.flush()
    assert found == [Write(1, 0, "t", files, 4096), Arena(0, 5)]
    assert len(writer.fds) == 1
    os.close(theirs)


def test_the_other_end_is_gone(ends) -> None:
    trainer, writer = ends
    writer.send(Failed("last"))
    writer.close()
    with pytest.raises(BrokenPipeError):
        trainer.send(Cancel())
    assert trainer.receive() == [Failed("last")]
    assert trainer.receive() is None


def test_shut_down(ends) -> None:
    trainer, writer = ends
    trainer.shut_down()
    assert writer.receive() is None
    writer.close()
    writer.shut_down()


@pytest.mark.parametrize("content", [b"\0\0\0\1\xc1", b"\xff\xff\xff\xff", b"\0\0\0\1\x80"])
def test_what_is_no_message(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    end = Connection(ours, FromWriter)
    theirs.send(content)
    with pytest.raises(ValueError, match=r"frame|msgpack|MessagePack|missing|Invalid|Expected"):
        end.receive()
    end.close()
    theirs.close()


def test_a_message_that_is_too_long(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    from undaunted.checkpointing.writer import connection

    monkeypatch.setattr(connection, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(ValueError, match=r"a message of .* bytes, 10 are allowed"):
        ends[0].send(Arena(0, 1))
