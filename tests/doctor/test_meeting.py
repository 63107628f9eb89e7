"""Nodes that meet: the one that is reached, and those that reach it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.ports import free_ports
from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.doctor import meeting as module
from undaunted.doctor.facts import Facts, Names
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.meeting import Host, Meeting, meet
from undaunted.doctor.meeting_messages import (
    Clock,
    Everyone,
    FromHost,
    Hello,
    MeetingVerdict,
    Peer,
    Ping,
    Pong,
    Reached,
    Unreached,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# --- host -----------------------------------------------------------------------------------------


ISSUES = known_issues()


class Guest:
    """Stands in for a connection; keeps what it is sent."""

    def __init__(self, node: str, *, gone: bool = False) -> None:
        self.facts = Facts(node=node, names=Names(host=f"{node}.cluster"))
        self.peer = Address("10.0.0.1", 4711)
        self.got: list[Any] = []
        self.closed = ""
        self.gone = gone

    def send(self, message: Any) -> bool:
        if not self.gone:
            self.got.append(message)
        return not self.gone

    def close(self, reason: str) -> None:
        self.closed = reason


class Table:
    """A host whose time does not pass: `begin` and `end` are what its timers call."""

    def __init__(self, expected: int) -> None:
        terms = Terms(run_id="undaunted-doctor", build="0.1.0", token=b"x" * 16)
        self.host = Host("127.0.0.1:0", terms, expected, ISSUES)
        self.host._timer = asyncio.get_running_loop().call_later(3600, self.begin)

    def begin(self) -> None:
        self.host._begin()

    def end(self) -> None:
        self.host._end()

    def say(self, guest: Guest, *messages: Any) -> None:
        for message in messages:
            self.host.received(guest, message)  # type: ignore[arg-type]

    def leave(self, guest: Guest) -> None:
        guest.gone = True
        self.host.closed(guest, "gone")  # type: ignore[arg-type]


def meeting(expected: int, course: Callable[[Table], None]) -> None:
    async def main() -> None:
        table = Table(expected)
        course(table)
        await table.host.close()

    asyncio.run(main())


def found(guest: Guest) -> list[str]:
    (verdict,) = [message for message in guest.got if isinstance(message, MeetingVerdict)]
    return [finding.found for finding in verdict.findings]


def test_a_whole_meeting() -> None:
    def course(table: Table) -> None:
        one, other = Guest("n1"), Guest("n2")
        table.say(one, Hello(one.facts, 1), Ping(7), Clock(0, 0))
        assert [type(message) for message in one.got] == [Pong]
        assert one.got[0].sent_ns == 7
        assert one.got[0].got_ns <= one.got[0].answered_ns
        table.say(other, Hello(other.facts, 2), Clock(0, 0))
        peers = [Peer("n1", "n1.cluster", "10.0.0.1", 1), Peer("n2", "n2.cluster", "10.0.0.1", 2)]
        assert one.got[1:] == [Everyone(peers, 0)]
        assert other.got == [Everyone(peers, 1)]
        table.say(one, Reached([Unreached(1, "no route to host")]))
        assert len(other.got) == 1
        table.say(other, Reached([]))
        assert found(one) == found(other) == ["n2 from n1: no route to host"]

    meeting(2, course)


def test_time_is_up_before_all_are_there() -> None:
    def course(table: Table) -> None:
        one = Guest("n1")
        table.say(one, Hello(one.facts, 1), Clock(0, 0))
        assert one.got == []
        table.begin()
        assert isinstance(one.got[0], Everyone)
        table.say(one, Reached([]))
        assert found(one) == ["only 1 of 2 nodes came to the meeting: n1"]

    meeting(2, course)


def test_nobody_comes() -> None:
    meeting(2, lambda table: table.begin())


def test_who_comes_late_is_told() -> None:
    def course(table: Table) -> None:
        one, late = Guest("n1"), Guest("n2")
        table.say(one, Hello(one.facts, 1), Clock(0, 0))
        table.begin()
        table.say(late, Hello(late.facts, 1))
        assert late.closed == "the meeting has begun without this node"
        table.say(late, Reached([]))
        table.leave(late)
        assert not any(isinstance(message, MeetingVerdict) for message in one.got)

    meeting(2, course)


def test_who_leaves_is_not_waited_for() -> None:
    def course(table: Table) -> None:
        one, other = Guest("n1"), Guest("n2")
        table.say(one, Hello(one.facts, 1), Clock(0, 0))
        table.say(other, Hello(other.facts, 1))
        table.leave(other)  # before its clock was compared
        assert isinstance(one.got[0], Everyone)
        table.say(one, Reached([]))
        assert found(one) == []

    meeting(2, course)


def test_one_that_cannot_be_sent_anything() -> None:
    def course(table: Table) -> None:
        one, other = Guest("n1"), Guest("n2", gone=True)
        table.say(one, Hello(one.facts, 1), Clock(0, 0))
        table.say(other, Hello(other.facts, 1), Clock(0, 0))
        table.say(one, Reached([]))
        assert found(one) == []

    meeting(2, course)


def test_one_that_does_not_say_what_it_reached() -> None:
    def course(table: Table) -> None:
        one, silent = Guest("n1"), Guest("n2")
        for guest in (one, silent):
            table.say(guest, Hello(guest.facts, 1), Clock(0, 0))
        table.say(one, Reached([]))
        table.end()
        table.end()
        assert found(one) == found(silent) == []

    meeting(2, course)


# --- meet -----------------------------------------------------------------------------------------


TOKEN = b"0123456789abcdef"


def terms(token: bytes = TOKEN) -> Terms:
    return Terms(run_id="undaunted-doctor", build="0.1.0", token=token, node="n1")


def facts_of(node: str, **facts: Any) -> Facts:
    return Facts(node=node, names=Names(host="localhost"), **facts)


def met(everyone: list[Facts], nodes: int) -> list[MeetingVerdict]:
    endpoint = f"127.0.0.1:{free_ports(1)}"
    verdicts: dict[int, MeetingVerdict] = {}

    def one(place: int, facts: Facts) -> None:
        meeting = Meeting(endpoint=endpoint, nodes=nodes, token=TOKEN, join_s=60.0)
        verdicts[place] = meet(meeting, facts, "0.1.0", ISSUES)

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(everyone)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return [verdicts[place] for place in range(len(everyone))]


def rows(verdict: MeetingVerdict) -> list[tuple[str, str, str]]:
    return [(finding.id, finding.severity, finding.found) for finding in verdict.findings]


def test_three_nodes_find_the_one_that_differs() -> None:
    everyone = [facts_of(f"n{number}", versions={"torch": "2.9"}) for number in range(2)]
    verdicts = met([*everyone, facts_of("n2", versions={"torch": "2.8"})], 3)
    for verdict in verdicts:
        assert sorted(verdict.nodes) == ["n0", "n1", "n2"]
        ((key, severity, found),) = rows(verdict)
        assert (key, severity) == ("N02", "fail")
        assert found.startswith("torch: 2.9 on n")
        assert found.endswith("2.8 on n2")


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # says nothing
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "connect", _hasty)
        meeting = Meeting(endpoint=f"127.0.0.1:{port}", nodes=2, token=TOKEN, join_s=0.2)
        verdict = meet(meeting, facts_of("n0"), "0.1.0", ISSUES)
    ((key, severity, found),) = rows(verdict)
    assert (key, severity) == ("N03", "fail")
    assert found.startswith(f"no meeting at 127.0.0.1:{port}: no answer within 50 ms")


async def _hasty(*args: Any, **kwargs: Any) -> Any:
    return await connect(*args, **kwargs, timeout_s=0.05)


def test_an_endpoint_without_an_address() -> None:
    meeting = Meeting(endpoint="no.such.host.invalid:29400", nodes=2, token=TOKEN, join_s=0.1)
    verdict = meet(meeting, facts_of("n0"), "0.1.0", ISSUES)
    assert [row[:2] for row in rows(verdict)] == [("N03", "fail")]


def test_another_token() -> None:
    async def refused() -> str:
        host = Host("127.0.0.1:0", terms(), 2, ISSUES)
        await host.start(60.0, 60.0)
        try:
            endpoint = f"127.0.0.1:{host._server.port}"
            with pytest.raises(WireError) as caught:
                await module.attend(
                    endpoint, terms(token=b"x" * 16), facts_of("n1"), join_s=60.0, reach_s=60.0
                )
        finally:
            await host.close()
        return str(caught.value)

    assert "has another token" in asyncio.run(refused())


def test_without_a_token_only_this_machine() -> None:
    meeting = Meeting(endpoint="0.0.0.0:29400", nodes=2, token=b"", join_s=0.1)
    verdict = meet(meeting, facts_of("n0"), "0.1.0", ISSUES)
    ((_, _, found),) = rows(verdict)
    assert "without a token only this machine may be listened at" in found


def test_one_that_leaves_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says hello and goes: the meeting takes place, with what it has told."""
    port = free_ports(1)
    monkeypatch.setattr(module, "REACH_S", 60.0)
    meeting = Meeting(endpoint=f"127.0.0.1:{port}", nodes=2, token=TOKEN, join_s=60.0)
    verdicts: list[MeetingVerdict] = []
    host = threading.Thread(
        target=lambda: verdicts.append(meet(meeting, facts_of("n0"), "0.1.0", ISSUES))
    )
    began = time.monotonic()
    host.start()
    asyncio.run(_leave_early(f"127.0.0.1:{port}"))
    host.join(100)
    assert sorted(verdicts[0].nodes) == ["n0", "n1"]
    assert time.monotonic() - began < 50


async def _leave_early(endpoint: str) -> None:
    loop = asyncio.get_running_loop()
    inbox = module._Inbox()
    connection = await module._connected(endpoint, inbox, terms(), loop.time() + 60)
    connection.send(Hello(facts_of("n1"), 1))
    connection.send(Clock(0, 0))
    await inbox.next(Everyone, 60)
    connection.close("gone")


def test_whom_to_try() -> None:
    assert module.chosen(1, 3) == [0, 2]
    assert module.chosen(0, 1) == []
    many = module.chosen(999, 1000)
    assert many == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511]
    tried = {place for you in range(100) for place in module.chosen(you, 100)}
    assert tried == set(range(100))


def test_peers_that_are_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        peers = [
            Peer("n0", "localhost", "127.0.0.1", port),
            Peer("n1", "no.such.host.invalid", "127.0.0.1", port),
        ]
        by_name = asyncio.run(module.try_peers(Everyone([*peers, peers[0]], 2)))
    ((place, name_only),) = [(one.peer, one.name_only) for one in by_name]
    assert (place, name_only) == (1, True)
    gone = asyncio.run(module.try_peers(Everyone([peers[0], peers[0]], 1)))
    assert gone == [Unreached(0, "127.0.0.1: connection refused")]


def test_messages_of_the_host_can_be_read_by_guests() -> None:
    import msgspec

    for message in (Everyone([], 0), Reached([])):
        encoded = msgspec.msgpack.encode(message)
        kind = FromHost if isinstance(message, Everyone) else Reached
        assert msgspec.msgpack.decode(encoded, type=kind) == message
