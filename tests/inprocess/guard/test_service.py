"""Serving ranks: links to them, their pages and processes, with the real core."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from simulator.__main__ import main as simulator
from tests.coordinator.wire.talk import on_loop
from tests.inprocess.guard.talk import (
    LIMITS,
    Changing,
    Peer,
    Said,
    enter,
    join,
    page,
    record,
    word,
)
from undaunted.coordinator import protocol as p
from undaunted.coordinator.wire import frames
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.guard import RankCall
from undaunted.inprocess.core.reading import Phase, Reading
from undaunted.inprocess.guard import links
from undaunted.inprocess.guard.rank_process import RankLink
from undaunted.inprocess.guard.service import GuardService

if TYPE_CHECKING:
    from collections.abc import Iterator

# A rank that connects, says what it is given, and then nothing more.
SILENT = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect("\\0" + sys.argv[1])
socket.send_fds(sock, [bytes.fromhex(sys.argv[3])], [int(sys.argv[2])])
sock.recv(1)
"""


class Serving:
    """A service whose link is up."""

    def __init__(self) -> None:
        self.told = Said()
        self.remarks: list[str] = []
        self.service = GuardService(self.remarks.append)
        self.service.linked(self.told.send)

    def connect(self) -> Peer:
        ours, theirs = socket.socketpair()
        self.service.serve(ours)
        return Peer(theirs)

    def listen(self) -> str:
        name = f"undaunted-test-{uuid.uuid4()}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(f"\0{name}")
        listener.listen()
        self.service.listen(listener)
        return name

    async def said(self, count: int) -> list[m.FromGuard]:
        await self.told.until(lambda: len(self.told.said) >= count)
        return self.told.said


@contextlib.contextmanager
def rank(
    serving: Serving, *messages: msgspec.Struct, reading: Reading
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that says these messages."""
    said = b"".join(frames.encode(msgspec.msgpack.encode(message)) for message in messages)
    name = serving.listen()
    fd = page(reading)
    argv = [sys.executable, "-S", "-c", SILENT, name, str(fd), said.hex()]
    with subprocess.Popen(argv, pass_fds=[fd]) as child:
        os.close(fd)
        try:
            yield child
        finally:
            child.kill()
            serving.service.close()


@on_loop
async def test_what_a_rank_says_is_reported_and_it_is_told_what_concerns_it() -> None:
    serving = Serving()
    peer = serving.connect()
    await peer.begin(enter(1))
    await peer.say(join(1))
    assert await serving.said(2) == [enter(1), join(1)]
    serving.service.received(word((0,), record(5)))
    serving.service.received(word((1,), record()))
    assert await peer.hear() == record()
    serving.service.close()
    peer.sock.close()


@on_loop
async def test_a_call_is_on_from_its_first_record_to_its_end_whoever_has_left() -> None:
    serving = Serving()
    peer, other = serving.connect(), serving.connect()
    for one, job_rank in ((peer, 1), (other, 2)):
        await one.begin(enter(job_rank))
        await one.say(join(job_rank))
    await serving.said(4)
    assert not serving.service.in_call(1)
    serving.service.received(word((1, 2), record(0, 1, 2)))
    assert serving.service.in_call(1)
    reason = m.Reason("BASE_EXCEPTION", 2, text="SystemExit")
    await other.say(m.Leave(0, 2, 0, reason))
    await serving.said(5)
    serving.service.received(word((1,), m.Finished(0, 0, (0, 1))))
    assert not serving.service.in_call(1)
    assert serving.service.in_call(2), "it takes no part in what the others do next"
    assert not serving.service.in_call(3)
    serving.service.close()
    for one in (peer, other):
        one.sock.close()


@on_loop
async def test_a_new_controller_is_told_all() -> None:
    serving = Serving()
    peer = serving.connect()
    await peer.begin(enter(1))
    await peer.say(join(1))
    await serving.said(2)
    serving.service.linked(None)
    serving.service.linked(serving.told.send)
    [resume] = serving.told.said[2:]
    assert isinstance(resume, m.Resume)
    assert (resume.enter, resume.said) == (enter(1), (join(1),))
    assert resume.waited_s > 0
    serving.service.close()
    peer.sock.close()


@on_loop
async def test_a_rank_without_a_controller_is_told_so_in_time() -> None:
    serving = Serving()
    peer = serving.connect()
    limits = msgspec.structs.replace(LIMITS, heartbeat_timeout=0.02)
    await peer.begin(enter(1, limits=limits))
    await serving.said(1)
    serving.service.linked(None)
    told = await peer.hear()
    assert isinstance(told, m.Dismissed)
    serving.service.close()
    peer.sock.close()


@on_loop
async def test_a_rank_that_closes_its_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undaunted.inprocess.guard.service._ENDING_S", 0.01)
    serving = Serving()
    peer = serving.connect()
    await peer.begin(enter(1))
    peer.sock.close()
    await serving.service.idle()
    lost = serving.told.said[-1]
    assert isinstance(lost, m.Lost)
    assert lost.reason.text == "it has closed its connection"


@on_loop
async def test_garbage_costs_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undaunted.inprocess.guard.service._ENDING_S", 0.0)
    serving = Serving()
    good = serving.connect()
    await good.begin(enter(1))
    await serving.said(1)
    # No message; not the first one; no page; memory that could be cut under the reader; another
    # rank's name.
    for garbage in (b"\xc1", join(0), enter(0)):
        bad = serving.connect()
        await bad.say(garbage)
        with pytest.raises(EOFError):
            await bad.hear()
        bad.sock.close()
    bad = serving.connect()
    with Path("/dev/zero").open("rb") as zero:
        await bad.say(enter(0), zero.fileno())
    with pytest.raises(EOFError):
        await bad.hear()
    bad.sock.close()
    assert serving.told.said == [enter(1)]
    bad = serving.connect()
    await bad.begin(enter(0))
    await bad.say(join(1))
    with pytest.raises(EOFError):
        await bad.hear()
    bad.sock.close()
    assert [said.job_rank for said in serving.told.said] == [1, 0, 0]  # type: ignore[union-attr]
    await good.say(join(1))
    await serving.said(4)
    serving.service.close()
    good.sock.close()


@on_loop
async def test_a_second_process_with_the_same_rank_is_turned_away() -> None:
    serving = Serving()
    first, second = serving.connect(), serving.connect()
    await first.begin(enter(1))
    await serving.said(1)
    await second.begin(enter(1))
    told = await second.hear()
    assert told == m.End(0, "mismatch", "another process that lives is rank 1 of this job")
    with pytest.raises(EOFError):
        await second.hear()
    await first.say(join(1))
    await serving.said(2)
    serving.service.close()
    first.sock.close()
    second.sock.close()


@on_loop
async def test_a_process_that_replaces_a_lost_one_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("undaunted.inprocess.guard.service._ENDING_S", 0.0)
    serving = Serving()
    first = serving.connect()
    await first.begin(enter(1))
    first.sock.close()
    await serving.service.idle()
    second = serving.connect()
    again = enter(1, rejoin=True)
    await second.begin(again)
    await serving.said(3)
    assert serving.told.said[-1] == again
    serving.service.close()
    second.sock.close()


@on_loop
async def test_a_rank_that_is_killed_is_lost_and_what_it_said_counts() -> None:
    serving = Serving()
    reading = Reading(auto_ns=1, call=0, epoch=0, rank=1)
    with rank(serving, enter(1), join(1), reading=reading) as child:
        await serving.said(2)
        child.kill()
        said = await serving.said(3)
        assert isinstance(said[2], m.Lost)
        assert said[2].reason.text == f"its process (pid {child.pid}) has ended"
        assert (said[2].reason.kind, said[2].reason.rank) == ("TERMINATED", 1)
        await serving.service.idle()


@on_loop
async def test_a_rank_that_is_stopped_is_killed_after_its_hard_timeout() -> None:
    serving = Serving()
    limits = m.Limits(0.02, 0.05, termination_grace_time=0.02)
    reading = Reading(auto_ns=1, phase=Phase.RUNNING, call=0, epoch=0, rank=1)
    with rank(serving, enter(1, limits=limits), join(1), reading=reading) as child:
        await serving.said(2)
        os.kill(child.pid, signal.SIGSTOP)
        serving.service.received(word((1,), record()))
        await serving.told.until(lambda: isinstance(serving.told.said[-1], m.Lost))
        assert serving.told.said[-1].reason.kind == "HARD_TIMEOUT"  # type: ignore[union-attr]
        assert child.wait() == -signal.SIGTERM


@on_loop
async def test_other_users_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving()
    name = serving.listen()
    monkeypatch.setattr("undaunted.inprocess.guard.service.os.geteuid", lambda: -1)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{name}")
        peer = Peer(sock)
        with pytest.raises(EOFError):
            await peer.hear()
    assert serving.remarks == [f"user {os.getuid()} has tried to be served"]
    serving.service.close()


@on_loop
async def test_a_process_that_has_ended_before_it_was_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "undaunted.inprocess.guard.rank_process.process.open_pidfd", lambda pid: None
    )
    serving = Serving()
    peer = serving.connect()
    await serving.service.idle()
    assert "has ended already" in serving.remarks[0]
    with pytest.raises(EOFError):
        await peer.hear()
    peer.sock.close()


@on_loop
async def test_messages_have_the_number_of_the_round() -> None:
    sent: list[p.Aside] = []
    remarks: list[str] = []
    service = GuardService(remarks.append, 3)
    service.linked(sent.append)
    ours, theirs = socket.socketpair()
    peer = Peer(theirs)
    service.serve(ours)
    await peer.begin(enter(0))
    await peer.say(join(0))
    while len(sent) < 2:
        await asyncio.sleep(0)
    assert links.read_report(sent[0]) == links.Report(3, enter(0))
    for number in (2, 3):
        service.received(word((0,), m.Record(0, number, (0, 1), 2), number))
    assert (await peer.hear()).epoch == 3  # type: ignore[union-attr]
    service.received(p.Aside(data=b"\xc1"))
    assert len(remarks) == 1
    service.close()
    theirs.close()


@on_loop
async def test_what_is_too_long_to_be_reported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_LONGEST", 10)
    serving = Serving()
    serving.service.report(enter(0))
    assert not serving.told.said
    assert "longer than 10 bytes" in serving.remarks[0]


@on_loop
async def test_nothing_is_reported_while_there_is_no_controller() -> None:
    serving = Serving()
    serving.service.linked(None)
    serving.service.report(enter(0))
    assert not serving.told.said


@on_loop
async def test_a_guard_that_raises_leaves_its_story(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    serving = Serving()
    peer = serving.connect()
    await peer.begin(enter(1))
    await serving.said(1)
    serving.service.received(word((1,), record(0, 1)))
    assert await peer.hear() == record(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(RankCall, "tell", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            serving.service.received(word((1,), m.Stop(0, 0, ())))
        [story] = tmp_path.iterdir()
        assert story.stat().st_mode & 0o777 == 0o600
        assert str(story) in serving.remarks[0]
        assert simulator(["--replay", str(story)]) == 1
        assert "ZeroDivisionError" in capsys.readouterr().out
    assert simulator(["--replay", str(story)]) == 1  # it does not raise any more, and answers
    assert "Pass" in capsys.readouterr().out
    serving.service.close()
    peer.sock.close()


# --- the link to one rank -------------------------------------------------------------------------


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
