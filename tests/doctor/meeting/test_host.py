"""The host of a meeting, told what guests say, without a network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.handshake import Terms
from undaunted.doctor.facts import Facts, Names
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.meeting import Host
from undaunted.doctor.meeting_messages import (
    Clock,
    Everyone,
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
