"""Who is connected to a level of the log server, and when nobody will come any more."""

from __future__ import annotations

import asyncio
import contextlib


class Attendance:
    """Counts connections. Used on one loop.

    Args:
        settle_s: how long after its start a server may expect launchers that have tried before.
        expected: when so many have come, nobody else is expected; 0 = that is not known.
    """

    def __init__(self, settle_s: float, expected: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._settled_s = self._loop.time() + settle_s
        self._changed = asyncio.Event()
        self._expected = expected
        self._came = 0
        self.here = 0

    def come(self) -> None:
        """One more is connected."""
        self.here += 1
        self._came += 1
        if self._came == self._expected:
            self._settled_s = self._loop.time()

    def leave(self) -> None:
        """One less."""
        self.here -= 1
        self._changed.set()

    async def over(self, timeout_s: float) -> bool:
        """Wait until all have left that are or may yet come; False if that takes too long."""
        deadline = self._loop.time() + timeout_s
        while self.here or self._loop.time() < min(deadline, self._settled_s):
            left_s = (deadline if self.here else self._settled_s) - self._loop.time()
            if left_s <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        return True
