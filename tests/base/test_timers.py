"""Timers by name."""

from __future__ import annotations

import asyncio
import time

from undaunted.base.timers import Timers, lease_clock_ns


def test_a_timer_is_replaced_by_one_of_its_name() -> None:
    async def main() -> list[str]:
        timers = Timers()
        fired: list[str] = []
        done = asyncio.Event()
        timers.set("a", 60.0, lambda: fired.append("old"))
        timers.set("a", 0.0, lambda: fired.append("new"))
        timers.set("b", 0.001, done.set)
        await asyncio.wait_for(done.wait(), 10)
        timers.set("c", 60.0, done.set)
        timers.cancel()
        return fired

    assert asyncio.run(main()) == ["new"]


def test_how_long_a_timer_runs() -> None:
    async def main() -> tuple[float | None, float | None]:
        timers = Timers()
        timers.set("a", 60.0, lambda: None)
        left = timers.left_s("a")
        timers.cancel()
        return left, timers.left_s("a")

    left, none = asyncio.run(main())
    assert left is not None
    assert 0 < left <= 60
    assert none is None


def test_a_timer_that_has_fired_is_forgotten() -> None:
    async def main() -> dict[str, asyncio.TimerHandle]:
        timers = Timers()
        done = asyncio.Event()
        timers.set("a", 0.0, lambda: timers.set("a", 0.0, done.set))
        await asyncio.wait_for(done.wait(), 10)
        return timers._set

    assert asyncio.run(main()) == {}


def test_the_clock_of_leases_is_ahead_of_the_loops_by_all_suspends() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert before <= lease_clock_ns() <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
