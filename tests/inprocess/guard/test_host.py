"""The controller's shell, and the connections of guards to it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.coordinator.wire.talk import on_loop, raw_peer, terms
from tests.inprocess.guard.talk import Controlling, Served, enter, join, record
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.server import Server
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import links as module
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.guard.host import ControllerHost
from undaunted.inprocess.guard.link_messages import ToController
from undaunted.inprocess.guard.remote import RemoteUplink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONG_S = 50.0


def uplink_to(port: int, **changes: Any) -> RemoteUplink:
    options = {"interval_s": 0.01, "silence_s": LONG_S, "remark": print, **changes}
    return RemoteUplink(f"127.0.0.1:{port}", options.pop("terms", terms()), **options)


@contextlib.asynccontextmanager
async def serving(
    controlling: Controlling, *, silence_s: float = LONG_S, port: int = 0
) -> AsyncIterator[tuple[ControllerHost, Server]]:
    host = ControllerHost(controlling, silence_s=silence_s, note=print)  # type: ignore[arg-type]
    server = Server(f"127.0.0.1:{port}", host, terms(), messages=ToController)
    server.longest = m.MAX_MESSAGE_BYTES
    await server.start()
    try:
        yield host, server
    finally:
        host.close()
        await server.close("the test is over")


def tell_all(event: Any) -> list[c.ControllerCommand]:
    return [c.Tell((0, 1, 2, 7), record())] if isinstance(event, m.Join) else []


@on_loop
async def test_ranks_of_several_guards_are_told_by_way_of_theirs() -> None:
    controlling = Controlling(tell_all)
    async with serving(controlling) as (host, server):
        uplinks = [uplink_to(server.port), uplink_to(server.port), host.local()]
        guards = [Served() for _ in uplinks]
        for uplink in uplinks[:2]:
            await uplink.connected(LONG_S)
        for uplink, guard in zip(uplinks, guards, strict=True):
            uplink.attach(guard)
        uplinks[0].send(enter(0))
        uplinks[0].send(enter(1))
        uplinks[1].send(enter(5))
        uplinks[2].send(enter(2))
        await controlling.until(lambda: len(controlling.events) == 4)
        uplinks[2].send(join(2))
        await guards[0].until(lambda: len(guards[0].seen) == 2)
        await guards[2].until(lambda: len(guards[2].seen) == 2)
        assert guards[0].seen == ["up", ((0, 1), record())]
        assert guards[1].seen == ["up"]
        assert guards[2].seen == ["up", ((2,), record())]
        for uplink in uplinks:
            await uplink.close()
        await host.deserted()
    assert sorted(e.job_ranks for e in controlling.events[5:]) == [(0, 1), (2,), (5,)]
    assert {e.text for e in controlling.events[5:]} == {"its guard has ended"}


@on_loop
async def test_a_guard_whose_connection_breaks_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", LONG_S)
    controlling = Controlling(tell_all)
    async with serving(controlling) as (_, server):
        uplink, guard = uplink_to(server.port), Served()
        await uplink.connected(LONG_S)
        uplink.attach(guard)
        uplink.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 1)
        uplink._connection.drop("cut")  # type: ignore[union-attr]
        await guard.until(lambda: guard.seen == ["up", "down", "up"])
        uplink.send(join(0))
        await guard.until(lambda: len(guard.seen) == 4)
        assert guard.seen[-1] == ((0,), record())
        await uplink.close()
        await controlling.until(lambda: len(controlling.events) == 3)
    assert controlling.events[2].job_ranks == (0,)


@on_loop
async def test_a_guard_that_does_not_come_back_is_unreachable_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.02)
    controlling = Controlling()
    async with serving(controlling) as (host, server):
        uplink = uplink_to(server.port)
        await uplink.connected(LONG_S)
        uplink.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 1)
        uplink._over = True  # as if its process had died
        uplink._connection.drop("killed")  # type: ignore[union-attr]
        await controlling.until(lambda: len(controlling.events) == 2)
        await host.deserted()
        await uplink.close()
    assert controlling.events[1].job_ranks == (0,)
    assert "has broken" in controlling.events[1].text


@on_loop
async def test_silence_is_noticed_by_both() -> None:
    controlling = Controlling()
    async with serving(controlling, silence_s=0.1) as (host, server):
        quiet = uplink_to(server.port, silence_s=3 * LONG_S, interval_s=LONG_S)
        await quiet.connected(LONG_S)
        quiet.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 2)
        assert controlling.events[1].text == "nothing was heard of its guard for 0.1 s"
        await quiet.close()
        monkey = Served()
        host.received = lambda connection, message: None  # type: ignore[method-assign]
        uplink = uplink_to(server.port, silence_s=0.05)
        await uplink.connected(LONG_S)
        uplink.attach(monkey)
        await monkey.until(lambda: monkey.seen[:2] == ["up", "down"])
        await uplink.close()


@on_loop
async def test_a_guard_that_says_that_it_comes_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    controlling = Controlling()
    async with serving(controlling) as (_, server):
        uplink, guard = uplink_to(server.port), Served()
        await uplink.connected(LONG_S)
        uplink.attach(guard)
        uplink.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 1)
        uplink._silent()
        await guard.until(lambda: guard.seen == ["up", "down", "up"])
        uplink.send(join(0))
        await controlling.until(lambda: len(controlling.events) == 2)
        await uplink.close()
    assert isinstance(controlling.events[1], m.Join)


@on_loop
async def test_a_controller_that_is_not_there_yet_is_waited_for() -> None:
    async with serving(Controlling()) as (_, server):
        port = server.port
    uplink = uplink_to(port)
    with pytest.raises(WireError, match="connection refused"):
        await uplink.connected(0.05)
    connecting = asyncio.ensure_future(uplink.connected(LONG_S))
    async with serving(Controlling(), port=port):
        await connecting
        await uplink.close()


@on_loop
async def test_a_wrong_token_is_refused_at_once() -> None:
    async with serving(Controlling()) as (_, server):
        uplink = uplink_to(server.port, terms=terms(token=b"another token of mine"))
        with pytest.raises(WireError, match="has another token"):
            await uplink.connected(LONG_S)
        await uplink.close()


@on_loop
async def test_garbage_costs_its_connection_only() -> None:
    controlling = Controlling()
    async with serving(controlling) as (_, server):
        uplink = uplink_to(server.port)
        await uplink.connected(LONG_S)
        async with raw_peer(server) as raw:
            raw.writer.write(b"\xff" * 100)
            await raw.rest()
        uplink._connection._transport.write(b"\0\0\0\1\xc1")  # type: ignore[union-attr]
        guard = Served()
        uplink.attach(guard)
        await guard.until(lambda: guard.seen == ["up", "down", "up"])
        uplink.send(enter(0))
        await controlling.until(lambda: controlling.events == [enter(0)])
        await uplink.close()


class StubLink:
    """A guard that remembers whom it was to tell something."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[tuple[int, ...]] = []

    def tell(self, job_ranks: tuple[int, ...], _message: m.ToRank) -> None:
        self.told.append(job_ranks)


@on_loop
async def test_what_comes_late_over_a_connection_that_was_given_up_is_not_heard() -> None:
    """A partition heals: the kernel delivers what was sent over the old connection."""
    controlling = Controlling(lambda _: [c.Tell((1,), record())])
    host = ControllerHost(controlling, silence_s=LONG_S, note=print)  # type: ignore[arg-type]
    old, new = StubLink(1), StubLink(2)
    host.heard(old, enter(1))
    host.heard(new, m.Resume(enter(1), None, None, ()))
    host.heard(old, m.Completed(0, 1, 0))
    host.left(old, "it is gone")
    assert [type(event) for event in controlling.events] == [m.Enter, m.Resume]
    assert (old.told, new.told) == ([(1,)], [(1,)])


@on_loop
async def test_a_message_to_many_is_encoded_once() -> None:
    host = ControllerHost(Controlling(), silence_s=LONG_S, note=print)  # type: ignore[arg-type]
    said = record()
    assert host.encoded(said) is host.encoded(said)
    assert msgspec.msgpack.decode(host.encoded(said), type=m.ToRank) == said


@on_loop
async def test_timers_and_notes_of_the_controller() -> None:
    notes: list[c.Note] = []
    note = c.Note("recorded", 0, 0)

    def answer(event: Any) -> list[c.ControllerCommand]:
        if isinstance(event, c.TimerFired):
            return [note]
        return [c.SetTimer("a", 60.0), c.SetTimer("a", 0.0)]

    controlling = Controlling(answer)
    host = ControllerHost(controlling, silence_s=LONG_S, note=notes.append)  # type: ignore[arg-type]
    host.local().send(enter())
    await controlling.until(lambda: len(controlling.events) == 2)
    assert controlling.events[1] == c.TimerFired("a")
    assert notes == [note]
    host.close()
