from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.coordinator.service.test_questions import lead, listener_of
from tests.coordinator.wire.talk import Recorder, Remarks, on_loop, raw_peer, serving, terms
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead.leader import Leader
from undaunted.coordinator.lead.messages import LeaderConfig
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.service import questions
from undaunted.coordinator.service.leading import Leading
from undaunted.coordinator.service.participant import Participant
from undaunted.coordinator.wire import frames
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.handshake import ClientHandshake
from undaunted.coordinator.wire.network import Sockets


@on_loop
async def test_who_says_nothing_after_the_handshake_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "FIRST_MESSAGE_S", 0.01)
    remarks, client = Remarks(), Recorder()
    async with serving(Participant(), say=remarks) as server:
        await connect(f"127.0.0.1:{server.port}", client, terms())
        await client.until(lambda: bool(client.ends))
        await remarks.until("it has not said what it wants within 0.01 s")


LATE = "it has not said what it wants within 0.05 s"


@pytest.mark.parametrize(
    "message",
    [
        p.Renew(epoch=1),
        p.Aside(data=b"x"),
        p.Report(number=1, event=m.NodeStopped("n3", 0)),
        p.Prepared(epoch=1, version=1, round=0),
    ],
    ids=lambda message: type(message).__name__,
)
@on_loop
async def test_who_begins_with_something_else_than_an_introduction_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, message: Any
) -> None:
    monkeypatch.setattr(questions, "FIRST_MESSAGE_S", 0.05)
    remarks, client, listener = Remarks(), Recorder(), listener_of("a")
    lead(listener, "a", {})
    async with serving(listener, say=remarks) as server:
        connection = await connect(f"127.0.0.1:{server.port}", client, terms())
        connection.send(message)
        await client.until(lambda: bool(client.ends))
        await remarks.until(LATE)


@on_loop
async def test_who_never_ends_its_first_message_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "FIRST_MESSAGE_S", 0.05)
    remarks, listener = Remarks(), listener_of("a")
    lead(listener, "a", {})
    async with serving(listener, say=remarks) as server, raw_peer(server) as peer:
        shake = ClientHandshake(terms(), bytes(32))
        while not (step := shake.received(msgspec.msgpack.encode(await peer.hear()))).done:
            assert step.send is not None
            peer.say(step.send)
        rest = asyncio.ensure_future(peer.rest())
        for byte in frames.encode(bytes(1000)):
            peer.writer.write(bytes([byte]))
            done, _ = await asyncio.wait([rest], timeout=0.01)
            if done:
                break
        assert rest.done()
        await remarks.until(LATE)


@on_loop
async def test_the_last_word_of_a_follower_is_for_the_leader_that_it_has_lost() -> None:
    """It is no question: nobody answers it, and the leader says why the node is lost."""
    client, listener = Recorder(), listener_of("a")
    leader = Leader(LeaderConfig("job7", PolicyConfig(), node="a"))
    nothing: Any = lambda *_: None  # noqa: E731
    listener.leading = Leading(leader, Sockets(terms()), keep=nothing, done=nothing)
    listener.leading.begin()
    async with serving(listener) as server:
        connection = await connect(f"127.0.0.1:{server.port}", client, terms())
        connection.send(p.Hello(node="b", incarnation="b1", slots=1))
        await client.until(lambda: any(isinstance(each, p.Welcome) for each in client.messages))
        connection.send(p.Miss(node="b", incarnation="b1", epoch=1))
        await client.until(lambda: bool(client.ends))
        await listener.leading.close()
    assert not any(isinstance(each, p.MissAnswer) for each in client.messages)
    lines = leader.recent.lines("policy", 99_999)
    (lost,) = [line for line in lines if b"NodeLost" in line]
    assert b"it has heard nothing of its coordinator" in lost
