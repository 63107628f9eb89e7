"""A probe hears that the launcher lives, and nothing else."""

from __future__ import annotations

import asyncio
import socket
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


def answering(test: Callable[[int], Coroutine[None, None, None]]) -> list[str]:
    said: list[str] = []

    async def main() -> None:
        one = Liveness(0, said.append, HOST)
        await one.open()
        try:
            await asyncio.wait_for(test(one.port), DEADLINE_S)
        finally:
            await one.close()

    asyncio.run(main())
    return said


def ask(port: int, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", method=method)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.status, answer.read()


def test_who_asks_hears_that_it_lives() -> None:
    async def test(port: int) -> None:
        assert await asyncio.to_thread(ask, port) == (200, b"alive\n")
        assert await asyncio.to_thread(ask, port, "HEAD") == (200, b"")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            await asyncio.to_thread(ask, port, "POST")

    assert answering(test) == []


def test_whoever_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEADLINE_S", 0.05)

    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await reader.read() == b""
        writer.close()

    assert answering(test) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_all_addresses_are_answered(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")

    async def main() -> None:
        one = Liveness(0, print)
        await one.open()
        reader, writer = await asyncio.open_connection(host, one.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"alive\n")
        writer.close()
        await one.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_a_port_that_is_taken_is_said_and_no_more() -> None:
    said: list[str] = []

    async def main() -> None:
        first = Liveness(0, print, HOST)
        await first.open()
        second = Liveness(first.port, said.append, HOST)
        await second.open()
        assert second.port == 0
        await second.close()
        await first.close()

    asyncio.run(main())
    (line,) = said
    assert "TORCHELASTIC_HEALTH_CHECK_PORT" in line


def test_nobody_asks() -> None:
    async def main() -> None:
        one = Liveness(None, print)
        await one.open()
        assert one.port == 0
        await one.close()

    asyncio.run(main())
