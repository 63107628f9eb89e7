"""Who connects is taken, also after descriptors were short; who waits too long has to go."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

from undaunted.base import accepting
from undaunted.base.accepting import Acceptor, Waiting

if TYPE_CHECKING:
    import pytest


class Short(socket.socket):
    """There is no descriptor left for the first connection."""

    fails = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.fails:
            self.fails -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def taken(listener: socket.socket) -> list[str]:
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    told: list[str] = []
    came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(connection: socket.socket) -> None:
        told.append("taken")
        connection.close()
        came.set_result(None)

    acceptor = Acceptor(listener, take, lambda: told.append("short"))
    with socket.create_connection(listener.getsockname()):
        await came
    acceptor.close()
    assert listener.fileno() == -1
    return told


def test_a_connection_is_taken_when_there_are_descriptors_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "_ACCEPT_AGAIN_S", 0.0)
    assert asyncio.run(taken(socket.socket())) == ["taken"]
    assert asyncio.run(taken(Short())) == ["short", "taken"]


def test_nothing_is_tried_again_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_ACCEPT_AGAIN_S", 0.0)

    async def ended() -> None:
        listener = Short()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        short: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acceptor = Acceptor(listener, lambda _: None, lambda: short.set_result(None))
        with socket.create_connection(listener.getsockname()):
            await short
        acceptor.close()
        await asyncio.sleep(0)  # a timer of 0 s would have come by then
        await asyncio.sleep(0)

    asyncio.run(ended())


def test_one_more_takes_the_place_of_the_oldest() -> None:
    async def crowded() -> list[str]:
        dropped: list[str] = []
        waiting = Waiting(2, 3600, lambda: dropped.append("crowded"))
        waiting.drop_oldest()  # there is none
        for who in ("a", "b", "a", "c"):
            waiting.add(who, lambda who=who: dropped.append(who))  # type: ignore[misc]
        waiting.remove("b")
        waiting.add("d", lambda: dropped.append("d"))
        waiting.drop_oldest()
        waiting.remove("gone")
        return dropped

    assert asyncio.run(crowded()) == ["crowded", "a", "c"]


def test_nobody_waits_longer_than_allowed() -> None:
    async def late() -> None:
        dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = Waiting(2, 0.0)
        waiting.add("one that asks", lambda: dropped.set_exception(AssertionError()))
        waiting.remove("one that asks")
        waiting.add("one that does not", lambda: dropped.set_result(None))
        await dropped

    asyncio.run(late())
