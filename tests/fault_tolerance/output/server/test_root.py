"""The log server, with peers that do what they should not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.fault_tolerance.output.server.serving import (
    DEADLINE_S,
    TOKEN,
    Served,
    root_server,
)
from undaunted.coordinator.wire import client
from undaunted.coordinator.wire.handshake import Terms
from undaunted.fault_tolerance.output.server import messages as w

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from undaunted.coordinator.wire.connection import Connection


class Peer:
    """A connection, and what has been said on it."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.connection: Connection

    async def connect(self, port: int) -> Peer:
        terms = Terms("job", "1", TOKEN)
        self.connection = await client.connect(
            f"127.0.0.1:{port}", self, terms, messages=w.ToSender
        )
        return self

    def opened(self, connection: Connection) -> None:
        pass

    def received(self, connection: Connection, message: Any) -> None:
        self.said.put_nowait(message)

    def closed(self, connection: Connection, reason: str) -> None:
        self.said.put_nowait(None)

    def lines(self, number: int, *, sender: str = "s", data: bytes = b"") -> None:
        data = data or b"%d\n" % number
        self.connection.send(w.Lines(sender=sender, number=number, path="log", data=data))

    async def hear(self) -> Any:
        return await asyncio.wait_for(self.said.get(), DEADLINE_S)

    async def introduce(self, sender: str = "s") -> w.Ready:
        self.connection.send(w.Open(sender=sender))
        ready: w.Ready = await self.hear()
        return ready

    async def until_written(self, number: int) -> None:
        while (await self.hear()).number != number:
            pass


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Served]:
    server = root_server(tmp_path / "logs")
    yield server
    server.stop()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_messages_that_come_twice_are_written_once(root: Served, tmp_path: Path) -> None:
    async def work() -> None:
        first = await Peer().connect(root.port)
        ready = await first.introduce()
        assert (ready.written, ready.known) == (-1, False)
        first.lines(0)
        first.lines(1)
        await first.until_written(1)
        second = await Peer().connect(root.port)
        ready = await second.introduce()
        assert (ready.written, ready.known) == (1, True)
        for number in (0, 1, 2):
            second.lines(number)
        await second.until_written(2)
        first.lines(2)  # of a connection that has been replaced
        first.connection.close("over")
        second.connection.close("over")
        assert await first.hear() is None

    run(work)
    root.stop()
    assert (tmp_path / "logs/log").read_bytes() == b"0\n1\n2\n"


@pytest.mark.parametrize("fault", ["gap", "stranger", "flood", "name"])
def test_whoever_breaks_the_rules_is_cut_off(root: Served, tmp_path: Path, fault: str) -> None:
    async def work() -> None:
        good = await Peer().connect(root.port)
        await good.introduce("good")
        bad = await Peer().connect(root.port)
        await bad.introduce("bad")
        if fault == "gap":
            bad.lines(0, sender="bad")
            bad.lines(5, sender="bad")
        elif fault == "stranger":
            bad.lines(0, sender="nobody")
        elif fault == "name":
            bad.connection.send(w.Open(sender="x" * 100_000))
        else:
            for number in range(100):  # regardless of the window
                if not bad.connection.send(
                    w.Lines(sender="bad", number=number, path="log", data=b"y" * 400_000)
                ):
                    break
        while await bad.hear() is not None:
            pass
        good.lines(0, sender="good", data=b"good\n")
        await good.until_written(0)
        good.connection.close("over")

    run(work)
    root.stop()
    assert b"good\n" in (tmp_path / "logs/log").read_bytes()


def test_a_launcher_that_connects_again_repeats_nothing(root: Served, tmp_path: Path) -> None:
    async def connected(sender: str) -> Peer:
        peer = await Peer().connect(root.port)
        peer.connection.send(w.Open(sender=sender))
        assert await peer.hear() is not None
        return peer

    async def work() -> None:
        other = await connected("other")
        before = await connected("again")
        before.lines(0, sender="again")
        again = await connected("again")
        before.lines(1, sender="again")  # on its way over the connection before
        for number in (0, 1, 2):
            again.lines(number, sender="again")
        await again.until_written(2)
        other.lines(0, sender="other", data=b"other\n")
        await other.until_written(0)
        for peer in (other, before, again):
            peer.connection.close("over")

    run(work)
    root.stop()
    lines = (tmp_path / "logs/log").read_bytes().splitlines()
    assert [line for line in lines if line != b"other"] == [b"0", b"1", b"2"]
    assert lines.count(b"other") == 1
