"""Silent links."""

from __future__ import annotations

import asyncio

from tests.coordinator.wire.talk import on_loop
from undaunted.inprocess.guard.links import Silence


@on_loop
async def test_silence_is_noticed_once() -> None:
    over = asyncio.Event()
    silence = Silence(0.01, over.set)
    await over.wait()
    silence.cancel()


@on_loop
async def test_what_is_heard_puts_it_off() -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[float] = loop.create_future()
    silence = Silence(0.05, lambda: over.set_result(loop.time()))
    heard = loop.create_future()
    loop.call_later(0.03, heard.set_result, None)
    await heard
    silence.heard()
    began = loop.time()
    assert await over >= began + 0.05


@on_loop
async def test_nothing_is_noticed_after_cancel() -> None:
    noticed: list[bool] = []
    Silence(0.0, lambda: noticed.append(True)).cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert noticed == []
