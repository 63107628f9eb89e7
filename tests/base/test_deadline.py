"""Calls that may never return, and waits on a loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from undaunted.base.deadline import in_time, off_loop, wait_for, within


def test_the_result_of_a_call_that_is_in_time() -> None:
    assert within(10.0, lambda: 7, 0) == 7


def test_an_exception_counts_as_no_result() -> None:
    def fail() -> int:
        raise OSError("gone")

    assert within(10.0, fail, 3) == 3


@pytest.mark.leaves("threads")
def test_a_call_that_hangs_is_left_behind() -> None:
    release = threading.Event()
    try:
        assert within(0.01, release.wait, None) is None
    finally:
        release.set()


def test_an_exception_of_a_call_in_time_is_raised() -> None:
    assert in_time(10.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        in_time(10.0, lambda: 1 // 0)


@pytest.mark.leaves("threads")
def test_a_call_that_hangs_raises_an_error_of_a_disk() -> None:
    release = threading.Event()
    try:
        with pytest.raises(OSError, match=r"no answer within 0\.01 s") as raised:
            in_time(0.01, release.wait)
        assert raised.value.strerror == "no answer within 0.01 s"
    finally:
        release.set()


# --- on a loop ------------------------------------------------------------------------------------


def test_a_wait_gives_its_result_or_its_error() -> None:
    async def fail() -> None:
        raise OSError("gone")

    async def main() -> None:
        assert await wait_for(asyncio.sleep(0, 7), 60) == 7
        with pytest.raises(OSError, match="gone"):
            await wait_for(fail(), 60)

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [-1, 0, 0.01])
def test_what_takes_longer_is_cancelled(seconds: float) -> None:
    async def main() -> None:
        never = asyncio.get_running_loop().create_future()
        with pytest.raises(TimeoutError):
            await wait_for(never, seconds)
        assert never.cancelled()

    asyncio.run(main())


def test_a_result_in_spite_of_the_cancellation_counts() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "done"
        return "never"

    assert asyncio.run(wait_for(stubborn(), 0.001)) == "done"


def test_a_task_that_is_cancelled_as_its_wait_ends_is_cancelled() -> None:
    async def main() -> None:
        ends = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(wait_for(ends, 60))
        await asyncio.sleep(0)
        ends.set_result(None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_what_a_cancelled_task_waits_for_is_cancelled() -> None:
    async def main() -> None:
        never = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(wait_for(never, 60))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert never.cancelled()

    asyncio.run(main())


# --- off the loop ---------------------------------------------------------------------------------


def test_a_call_off_the_loop_gives_its_result_or_its_error() -> None:
    async def main() -> None:
        slots = asyncio.Semaphore(1)
        assert await off_loop(slots, 60, threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await off_loop(slots, 60, lambda: 1 // 0)
        assert await off_loop(slots, 60, lambda: None) is None
        assert not slots.locked()

    asyncio.run(main())


def test_a_call_that_is_left_behind_keeps_its_slot() -> None:
    released = threading.Event()

    async def main() -> None:
        slots = asyncio.Semaphore(1)
        for _ in range(2):  # the second finds no slot
            with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
                await off_loop(slots, 0.01, lambda: released.wait(60))
        assert slots.locked()
        released.set()
        assert await off_loop(slots, 60, lambda: 7) == 7

    asyncio.run(main())
