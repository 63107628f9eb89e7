"""Timers by name, on the running loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def lease_clock_ns() -> int:
    """Nanoseconds of a clock that never goes back, and goes on while the machine is suspended.

    The loop's own clock, by which timers fire, stands still then: after it, leases are over that
    timers have not seen yet.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Timers:
    """A timer that is set again replaces the one of that name. Whoever makes it cancels it."""

    def __init__(self) -> None:
        self._set: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Make ``call`` after ``delay_s`` seconds; replaces a timer of that name."""
        if (old := self._set.pop(name, None)) is not None:
            old.cancel()
        self._set[name] = asyncio.get_running_loop().call_later(delay_s, self._fire, name, call)

    def left_s(self, name: str) -> float | None:
        """For how many seconds a timer still runs; None = there is none."""
        if (timer := self._set.get(name)) is None:
            return None
        return max(0.0, timer.when() - asyncio.get_running_loop().time())

    def cancel(self) -> None:
        """Cancel all of them."""
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()

    def _fire(self, name: str, call: Callable[[], None]) -> None:
        del self._set[name]  # names may be new for ever
        call()
