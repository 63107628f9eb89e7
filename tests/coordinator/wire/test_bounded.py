from __future__ import annotations

import asyncio

import pytest

from tests.coordinator.wire.talk import DEADLINE_S, on_loop
from undaunted.coordinator.wire.bounded import bounded


async def never(ended: list[str]) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.append("cancelled")


@on_loop
async def test_results_and_errors_come_through() -> None:
    assert await bounded(asyncio.sleep(0, "x"), DEADLINE_S) == "x"

    async def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await bounded(fail(), DEADLINE_S)


@on_loop
async def test_what_is_late_is_cancelled() -> None:
    ended: list[str] = []
    with pytest.raises(asyncio.TimeoutError):
        await bounded(never(ended), 0.001)
    assert ended == ["cancelled"]


@on_loop
async def test_a_result_in_spite_of_the_cancellation_counts() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "done"
        return "never"

    assert await bounded(stubborn(), 0.001) == "done"


@on_loop
async def test_cancelling_ends_both() -> None:
    ended: list[str] = []
    task = asyncio.create_task(bounded(never(ended), DEADLINE_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


@on_loop
async def test_cancelling_is_not_lost_when_the_call_returns_in_that_moment() -> None:
    release = asyncio.Event()
    task = asyncio.create_task(bounded(release.wait(), DEADLINE_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    release.set()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
