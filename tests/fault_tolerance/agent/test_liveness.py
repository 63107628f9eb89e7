"""A probe hears that the launcher lives, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.agent import liveness as module
from undaunted.fault_tolerance.agent.liveness import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

DEADLINE_S = 20
HOST = "127.0.0.1"


def answering(test: Callable[[Liveness, int], Coroutine[None, None, None]]) -> list[str]:
    said: list[str] = []

    async def main() -> None:
        one = Liveness(0, said.append, HOST)
        await one.open()
        try:
            await asyncio.wait_for(test(one, one.ports[0]), DEADLINE_S)
        finally:
            await one.close()

    asyncio.run(main())
    return said


def ask(port: int, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", method=method)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.status, answer.read()


def test_who_asks_hears_that_it_lives() -> None:
    async def test(_: Liveness, port: int) -> None:
        assert await asyncio.to_thread(ask, port) == (200, b"alive\n")
        assert await asyncio.to_thread(ask, port, "HEAD") == (200, b"")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            await asyncio.to_thread(ask, port, "POST")

    assert answering(test) == []


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n", b"x" * 100_000])
def test_whoever_says_nothing_useful_is_let_go(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(module, "_DEADLINE_S", 0.05)

    async def test(_: Liveness, port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    answering(test)


def test_more_connections_than_it_takes_are_closed_and_it_goes_on() -> None:
    async def test(one: Liveness, port: int) -> None:
        idle = [await asyncio.open_connection(HOST, port) for _ in range(9)]
        try:
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await idle[-1][0].readexactly(1)
            assert len(one._open) == 8
        finally:
            for _, writer in idle:
                writer.close()
        await asyncio.gather(*one._open)
        assert await asyncio.to_thread(ask, port) == (200, b"alive\n")

    answering(test)


def test_a_port_that_is_taken_is_said_and_no_more() -> None:
    said: list[str] = []

    async def main() -> None:
        first = Liveness(0, print, HOST)
        await first.open()
        second = Liveness(first.ports[0], said.append, HOST)
        await second.open()
        assert second.ports == []
        await second.close()
        await first.close()

    asyncio.run(main())
    (line,) = said
    assert "TORCHELASTIC_HEALTH_CHECK_PORT" in line


def test_nobody_asks() -> None:
    async def main() -> None:
        one = Liveness(None, print)
        await one.open()
        assert one.ports == []
        await one.close()

    asyncio.run(main())
