"""Noticing that a peer has not said anything for some time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Silence:
    """Calls back once when nothing was heard for ``limit_s`` seconds; to be cancelled.

    Hearing something costs a look at the clock: the timer is put off only when it fires.
    """

    def __init__(self, limit_s: float, call: Callable[[], None]) -> None:
        """Begin now."""
        self._limit_s = limit_s
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._fired)

    def heard(self) -> None:
        """Something has come."""
        self._heard = self._loop.time()

    def cancel(self) -> None:
        """Do not call any more."""
        self._timer.cancel()

    def _fired(self) -> None:
        end = self._heard + self._limit_s
        if end <= self._loop.time():
            self._call()
        else:
            self._timer = self._loop.call_at(end, self._fired)
