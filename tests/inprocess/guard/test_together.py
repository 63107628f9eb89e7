"""Ranks, guards, links and the controller, all real, in one process."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING

from tests.coordinator.wire.talk import on_loop, terms
from tests.inprocess.guard.talk import Peer, enter, join
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.server import Server
from undaunted.inprocess.core import links
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.guard import controller_link
from undaunted.inprocess.guard.controller_link import ControllerLink
from undaunted.inprocess.guard.host import ControllerHost
from undaunted.inprocess.guard.links import ToController, ToGuard
from undaunted.inprocess.guard.service import GuardService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

LONG_S = 50.0


class Rank:
    """A rank whose guard is connected to the controller."""

    def __init__(self, job_rank: int, port: int) -> None:
        ours, theirs = socket.socketpair()
        self.peer = Peer(theirs)
        self.service = GuardService(print)
        self.link = ControllerLink(
            f"127.0.0.1:{port}",
            partial(connect, terms=terms(), messages=ToGuard),
            self.service,
            interval_s=0.05,
            silence_s=LONG_S,
            say=print,
        )
        self.job_rank = job_rank
        self._ours = ours

    async def begin(self) -> None:
        await self.link.connected(LONG_S)
        self.service.serve(self._ours)
        await self.peer.begin(enter(self.job_rank))
        await self.peer.say(join(self.job_rank))

    def fault(self) -> m.Fault:
        reason = m.Reason("EXCEPTION", self.job_rank, text="oops")
        return m.Fault(0, self.job_rank, 0, reason)

    async def close(self) -> None:
        self.peer.sock.close()
        self.service.close()
        await self.link.close()


@contextlib.asynccontextmanager
async def two_ranks() -> AsyncIterator[list[Rank]]:
    """Both are in epoch 0."""
    host = ControllerHost(lambda *_: print, print, silence_s=LONG_S)
    server = Server("127.0.0.1:0", host, terms(), messages=ToController)
    await server.start()
    ranks = [Rank(job_rank, server.port) for job_rank in range(2)]
    for rank in ranks:
        await rank.begin()
    for rank in ranks:
        assert isinstance(await rank.peer.hear(), m.Record)
    try:
        yield ranks
    finally:
        for rank in ranks:
            await rank.close()
        host.close()
        await server.close("the test is over")


@on_loop
async def test_a_fault_while_a_link_is_cut_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "GRACE_S", LONG_S)
    async with two_ranks() as (first, second):
        second.link._connection.drop("cut")  # type: ignore[union-attr]
        await second.peer.say(second.fault())
        for rank in (first, second):
            told = await rank.peer.hear()
            assert isinstance(told, m.Stop)
            assert told.reasons[0].job_rank == 1


@on_loop
async def test_what_is_said_while_a_link_is_cut_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "GRACE_S", LONG_S)
    monkeypatch.setattr(controller_link, "_SHORTEST_PAUSE_S", 0.2)
    async with two_ranks() as (first, second):
        monkeypatch.setattr(second.link, "_address", "127.0.0.1:1")
        address = first.link._address
        second.link._connection.drop("cut")  # type: ignore[union-attr]
        await first.peer.say(first.fault())
        assert isinstance(await first.peer.hear(), m.Stop)
        monkeypatch.setattr(second.link, "_address", address)
        assert isinstance(await second.peer.hear(), m.Stop)
        for rank in (first, second):
            await rank.peer.say(join(rank.job_rank, epoch=1))
        for rank in (first, second):
            assert isinstance(told := await rank.peer.hear(), m.Record)
            assert told.members == (0, 1)


@on_loop
async def test_a_link_that_stays_cut_costs_its_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "GRACE_S", 0.05)
    async with two_ranks() as (first, second):
        monkeypatch.setattr(second.link, "_address", "127.0.0.1:1")
        address = first.link._address
        second.link._connection.drop("cut")  # type: ignore[union-attr]
        assert isinstance(await first.peer.hear(), m.Stop)
        await first.peer.say(join(0, epoch=1))
        assert isinstance(told := await first.peer.hear(), m.Record)
        assert told.members == (0,)
        monkeypatch.setattr(second.link, "_address", address)
        assert isinstance(await second.peer.hear(), m.Dismissed)
