"""Prints all stacks when a rank makes no progress and no launcher of ours watches."""

from __future__ import annotations

import faulthandler
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOKS = 4  # in a limit
_CLOSE_S = 5.0


class Watchdog:
    """Prints the stacks of all threads to standard error, once for each standstill. Owns a thread.

    Python's own watchdog does it, which does not need the interpreter's lock; the thread puts it
    off as long as there is progress.

    Args:
        limit_s: without progress for so long is a standstill; by up to a quarter more.
        progress: returns a number that changes with progress.
    """

    def __init__(self, limit_s: float, progress: Callable[[], object]) -> None:
        self._limit_s = limit_s
        self._progress = progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="undaunted-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        seen: object = None
        while not self._over.is_set():
            now = self._progress()
            if now != seen:
                seen = now
                self._put_off()
            self._over.wait(self._limit_s / _LOOKS)
        faulthandler.cancel_dump_traceback_later()

    def _put_off(self) -> None:
        try:
            faulthandler.dump_traceback_later(self._limit_s, file=sys.__stderr__ or 2)
        except (OSError, ValueError, RuntimeError):  # standard error is closed
            self._over.set()
