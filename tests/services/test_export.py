"""Results are sent once, in order; who takes them may be away or slow."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tests.coordinator.wire.talk import on_loop
from undaunted.services import export as module
from undaunted.services.export import Export

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest

DEADLINE_S = 20.0


class Receiver:
    """Takes what is sent, on the loop."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.status = "200 OK"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        self.got.put_nowait((head.partition("\r\n")[0], body))


def received(test: Callable[[Receiver, Export], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def run() -> None:
        receiver = Receiver()
        async with await asyncio.start_server(receiver.take, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            export = Export(f"http://127.0.0.1:{port}/hook?key=1")
            export.begin()
            try:
                await asyncio.wait_for(test(receiver, export), DEADLINE_S)
            finally:
                await export.close()

    return on_loop(run)


@received
async def test_results_are_sent_in_order(receiver: Receiver, export: Export) -> None:
    for number in range(3):
        export.give({"number": number})
    got = [await receiver.got.get() for _ in range(3)]
    assert got == [("POST /hook?key=1 HTTP/1.1", {"number": number}) for number in range(3)]


@received
async def test_one_that_is_refused_is_lost_and_said(receiver: Receiver, export: Export) -> None:
    receiver.status = "503 Busy"
    export.give({})
    await receiver.got.get()
    receiver.status = "200 OK"
    export.give({})
    await receiver.got.get()
    export.give({})
    await receiver.got.get()
    assert export.lost == 1
    assert export.sent >= 1


@on_loop
async def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()
    export = Export("http://127.0.0.1:1")
    send = export._send

    async def told(body: str) -> str:
        try:
            return await send(body)
        finally:
            tried.set()

    monkeypatch.setattr(export, "_send", told)
    export.begin()
    export.give({})
    await asyncio.wait_for(tried.wait(), DEADLINE_S)
    await asyncio.sleep(0)
    assert (export.sent, export.lost, export.problem) == (0, 1, "Connection refused")
    await export.close()


@on_loop
async def test_more_than_can_wait_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    export = Export("http://127.0.0.1:1")
    for _ in range(5):
        export.give({})
    assert (export.lost, export.problem) == (3, "2 wait")
    await export.close()
