"""Meetings of several nodes, each with an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.ports import free_ports
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.doctor import meeting as guest
from undaunted.doctor import meeting as module
from undaunted.doctor.facts import Facts, Names
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.meeting import Host, Meeting, meet
from undaunted.doctor.meeting_messages import (
    Clock,
    Everyone,
    FromHost,
    Hello,
    Peer,
    Reached,
    Unreached,
)

if TYPE_CHECKING:
    from undaunted.doctor.meeting_messages import MeetingVerdict

ISSUES = known_issues()
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
        monkeypatch.setattr(guest, "connect", _hasty)
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
                await guest.attend(
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
    inbox = guest._Inbox()
    connection = await guest._connected(endpoint, inbox, terms(), loop.time() + 60)
    connection.send(Hello(facts_of("n1"), 1))
    connection.send(Clock(0, 0))
    await inbox.next(Everyone, 60)
    connection.close("gone")


def test_whom_to_try() -> None:
    assert guest.chosen(1, 3) == [0, 2]
    assert guest.chosen(0, 1) == []
    many = guest.chosen(999, 1000)
    assert many == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511]
    tried = {place for you in range(100) for place in guest.chosen(you, 100)}
    assert tried == set(range(100))


def test_peers_that_are_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        peers = [
            Peer("n0", "localhost", "127.0.0.1", port),
            Peer("n1", "no.such.host.invalid", "127.0.0.1", port),
        ]
        by_name = asyncio.run(guest.try_peers(Everyone([*peers, peers[0]], 2)))
    ((place, name_only),) = [(one.peer, one.name_only) for one in by_name]
    assert (place, name_only) == (1, True)
    gone = asyncio.run(guest.try_peers(Everyone([peers[0], peers[0]], 1)))
    assert gone == [Unreached(0, "127.0.0.1: connection refused")]


def test_messages_of_the_host_can_be_read_by_guests() -> None:
    import msgspec

    for message in (Everyone([], 0), Reached([])):
        encoded = msgspec.msgpack.encode(message)
        kind = FromHost if isinstance(message, Everyone) else Reached
        assert msgspec.msgpack.decode(encoded, type=kind) == message
