"""The controller's shell, and the connections of guards to it."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from tests.coordinator.wire.talk import on_loop, raw_peer, terms
from tests.inprocess.guard.talk import Controlling, Served, enter, join, record, report
from undaunted.coordinator.protocol import MAX_LINK_BYTES
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.server import Server
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import links as module
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.guard import host as host_module
from undaunted.inprocess.guard.controller_link import ControllerLink
from undaunted.inprocess.guard.host import ControllerHost, LocalConnection
from undaunted.inprocess.guard.links import ToController, ToGuard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONG_S = 50.0


class Guard(Served):
    """A guard in a process of its own."""

    def __init__(self, port: int, **changes: Any) -> None:
        super().__init__()
        options = {"interval_s": 0.01, "silence_s": LONG_S, "say": print, **changes}
        dial = partial(connect, terms=options.pop("terms", terms()), messages=ToGuard)
        self.link = ControllerLink(f"127.0.0.1:{port}", dial, cast("Any", self), **options)

    async def connected(self, timeout_s: float = LONG_S) -> Guard:
        await self.link.connected(timeout_s)
        return self


@pytest.fixture(autouse=True)
def _controlling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "Controller", lambda: Controlling.newest)


def host_of(silence_s: float = LONG_S, **changes: Any) -> ControllerHost:
    options = {"notes": lambda *_: print, "say": print, **changes}
    return ControllerHost(silence_s=silence_s, **options)


@contextlib.asynccontextmanager
async def serving(
    _controlling: Controlling, *, silence_s: float = LONG_S, port: int = 0
) -> AsyncIterator[tuple[ControllerHost, Server]]:
    host = host_of(silence_s)
    server = Server(f"127.0.0.1:{port}", host, terms(), messages=ToController)
    server.longest = MAX_LINK_BYTES
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
        one, other = await Guard(server.port).connected(), await Guard(server.port).connected()
        here = Served()
        local = LocalConnection(host, cast("Any", here))
        one.send(enter(0))
        one.send(enter(1))
        other.send(enter(5))
        await here.until(lambda: here.seen == ["up"])
        here.send(enter(2))
        await controlling.until(lambda: len(controlling.events) == 4)
        here.send(join(2))
        await one.until(lambda: len(one.seen) == 2)
        await here.until(lambda: len(here.seen) == 2)
        assert one.seen == ["up", ((0, 1), record())]
        assert other.seen == ["up"]
        assert here.seen == ["up", ((2,), record())]
        await one.link.close()
        await other.link.close()
        local.close()
        await host.deserted()
    assert sorted(e.job_ranks for e in controlling.events[5:]) == [(0, 1), (2,), (5,)]
    assert {e.text for e in controlling.events[5:]} == {"its guard has ended"}


@on_loop
async def test_who_is_refused_has_no_part_in_the_job() -> None:
    end = m.End(0, "mismatch", "another one is rank 0")
    tell: Any = lambda event: (  # noqa: E731
        [c.Answer(end)] if isinstance(event, m.Enter) and event.pid == 999 else tell_all(event)
    )
    controlling = Controlling(tell)
    async with serving(controlling) as (_, server):
        guard, stray = await Guard(server.port).connected(), await Guard(server.port).connected()
        guard.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 1)
        stray.send(msgspec.structs.replace(enter(0), pid=999))
        stray.send(join(0))  # is not listened to
        await stray.until(lambda: len(stray.seen) == 2)
        guard.send(join(0))
        await guard.until(lambda: len(guard.seen) == 2)
        assert (guard.seen[-1], stray.seen[-1]) == (((0,), record()), ((0,), end))
        assert len(controlling.events) == 3
        await stray.link.close()
        await guard.link.close()
        await controlling.until(lambda: len(controlling.events) == 4)


@on_loop
async def test_a_guard_whose_connection_breaks_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", LONG_S)
    controlling = Controlling(tell_all)
    async with serving(controlling) as (_, server):
        guard = await Guard(server.port).connected()
        guard.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 1)
        guard.link._connection.drop("cut")  # type: ignore[union-attr]
        await guard.until(lambda: guard.seen == ["up", "down", "up"])
        guard.send(m.Resume(enter(0), None, None, ()))
        guard.send(join(0))
        await guard.until(lambda: len(guard.seen) == 4)
        assert guard.seen[-1] == ((0,), record())
        await guard.link.close()
        await controlling.until(lambda: len(controlling.events) == 4)
    assert controlling.events[3].job_ranks == (0,)


@on_loop
async def test_a_guard_that_does_not_come_back_is_unreachable_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.02)
    controlling = Controlling()
    async with serving(controlling) as (host, server):
        guard = await Guard(server.port).connected()
        guard.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 1)
        guard.link._over = True  # as if its process had died
        guard.link._connection.drop("killed")  # type: ignore[union-attr]
        await controlling.until(lambda: len(controlling.events) == 2)
        await host.deserted()
        await guard.link.close()
    assert controlling.events[1].job_ranks == (0,)
    assert "has broken" in controlling.events[1].text


@on_loop
async def test_silence_is_noticed_by_both() -> None:
    controlling = Controlling()
    async with serving(controlling, silence_s=0.1) as (host, server):
        quiet = Guard(server.port, silence_s=3 * LONG_S, interval_s=LONG_S)
        await quiet.connected(LONG_S)
        quiet.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 2)
        assert controlling.events[1].text == "nothing was heard of its guard for 0.1 s"
        await quiet.link.close()
        host.received = lambda connection, message: None  # type: ignore[method-assign]
        guard = await Guard(server.port, silence_s=0.05).connected()
        await guard.until(lambda: guard.seen[:2] == ["up", "down"])
        await guard.link.close()


@on_loop
async def test_a_guard_that_says_that_it_comes_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    controlling = Controlling()
    async with serving(controlling) as (_, server):
        guard = await Guard(server.port).connected()
        guard.send(enter(0))
        await controlling.until(lambda: len(controlling.events) == 1)
        guard.link._silent()
        await guard.until(lambda: guard.seen == ["up", "down", "up"])
        guard.send(m.Resume(enter(0), None, None, ()))
        guard.send(join(0))
        await controlling.until(lambda: len(controlling.events) == 3)
        await guard.link.close()
    assert isinstance(controlling.events[2], m.Join)


@on_loop
async def test_a_controller_that_is_not_there_yet_is_waited_for() -> None:
    async with serving(Controlling()) as (_, server):
        port = server.port
    guard = Guard(port)
    with pytest.raises(WireError, match="connection refused"):
        await guard.connected(0.05)
    connecting = asyncio.ensure_future(guard.connected(LONG_S))
    async with serving(Controlling(), port=port):
        await connecting
        await guard.link.close()


@on_loop
async def test_a_wrong_token_is_refused_at_once() -> None:
    async with serving(Controlling()) as (_, server):
        guard = Guard(server.port, terms=terms(token=b"another token of mine"))
        with pytest.raises(WireError, match="has another token"):
            await guard.connected(LONG_S)
        await guard.link.close()


@on_loop
async def test_garbage_costs_its_connection_only() -> None:
    controlling = Controlling()
    async with serving(controlling) as (_, server):
        guard = await Guard(server.port).connected()
        async with raw_peer(server) as raw:
            raw.writer.write(b"\xff" * 100)
            await raw.rest()
        guard.link._connection._transport.write(b"\0\0\0\1\xc1")  # type: ignore[union-attr]
        await guard.until(lambda: guard.seen == ["up", "down", "up"])
        guard.send(enter(0))
        await controlling.until(lambda: controlling.events == [enter(0)])
        await guard.link.close()


@on_loop
async def test_timers_and_notes_of_the_controller() -> None:
    notes: list[c.Note] = []
    note = c.Note("recorded", 0, 0)

    def answer(event: Any) -> list[c.ControllerCommand]:
        if isinstance(event, c.TimerFired):
            return [note]
        return [c.SetTimer("a", 60.0), c.SetTimer("a", 0.0)]

    controlling = Controlling(answer)
    host = host_of(notes=lambda *_: notes.append)
    served = Served()
    LocalConnection(host, cast("Any", served))
    await served.until(lambda: bool(served.seen))
    served.send(enter())
    await controlling.until(lambda: len(controlling.events) == 2)
    assert controlling.events[1] == c.TimerFired("a")
    assert notes == [note]
    host.close()


@on_loop
async def test_what_comes_after_the_end_is_not_heard() -> None:
    controlling = Controlling()
    host = host_of()
    host.close()
    host.received(cast("Any", None), report(enter(1)))
    assert controlling.events == []
