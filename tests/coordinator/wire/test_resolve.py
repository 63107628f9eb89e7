from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from tests.coordinator.wire.talk import DEADLINE_S, on_loop
from undaunted.coordinator.wire import resolve as module
from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.resolve import Place, resolve


class NameServer:
    """Stands for `socket.getaddrinfo` of names; numbers go to the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
        self.released = threading.Event()
        self.real = socket.getaddrinfo
        if answers:
            self.released.set()
        monkeypatch.setattr(socket, "getaddrinfo", self.answer)

    def answer(self, host: str | None, port: int, **options: Any) -> list[Any]:
        if options["flags"] & socket.AI_NUMERICHOST:
            return self.real(host, port, **options)
        assert self.released.wait(DEADLINE_S)
        if host == "nobody":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.real("127.0.0.1", port, **options) * 2


async def until_no_thread_waits() -> None:
    """All threads of look-ups have ended."""
    for thread in threading.enumerate():
        if thread.name == "undaunted-resolve":
            await asyncio.get_running_loop().run_in_executor(None, thread.join, DEADLINE_S)


@on_loop
async def test_numbers_need_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    NameServer(monkeypatch, answers=False)
    assert await resolve(Address("10.0.0.1", 5), 1) == [Place(socket.AF_INET, ("10.0.0.1", 5))]
    everywhere = await resolve(Address("", 5), 1, passive=True)
    assert Place(socket.AF_INET, ("0.0.0.0", 5)) in everywhere


@on_loop
async def test_names_are_looked_up_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    NameServer(monkeypatch, answers=True)
    places = await resolve(Address("node0", 5), DEADLINE_S)
    assert places == [Place(socket.AF_INET, ("127.0.0.1", 5))]
    await until_no_thread_waits()


@on_loop
async def test_names_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    NameServer(monkeypatch, answers=True)
    with pytest.raises(OSError, match="the name nobody cannot be looked up: Name or service"):
        await resolve(Address("nobody", 5), DEADLINE_S)
    await until_no_thread_waits()


@on_loop
async def test_names_that_cannot_be_names() -> None:
    with pytest.raises(OSError, match="cannot be"):
        await resolve(Address("x" * 70 + ".y", 5), DEADLINE_S)
    await until_no_thread_waits()


@on_loop
async def test_a_name_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = NameServer(monkeypatch, answers=False)
    monkeypatch.setattr(module, "_threads", threading.BoundedSemaphore(2))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="the name node0 was not looked up in time"):
                await resolve(Address("node0", 5), 0.01)
        with pytest.raises(OSError, match="too many others still are"):
            await resolve(Address("node1", 5), 0.01)
    finally:
        away.released.set()
        await until_no_thread_waits()
    await resolve(Address("node0", 5), DEADLINE_S)
    await until_no_thread_waits()
