"""One thing at a time: what an event causes waits until the event has been dealt with."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Turns:
    """Calls that may cause further calls; these are made afterwards, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def take(self, call: Callable[[], None]) -> None:
        """Make ``call`` when all calls before it have returned; at once if there are none."""
        self._waiting.append(call)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._busy = False
