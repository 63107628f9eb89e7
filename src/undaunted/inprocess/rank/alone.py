"""A rank whose guard is gone or stopped: nobody else would end it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from undaunted.base.process import read_stat
from undaunted.inprocess.core.reading import Phase

if TYPE_CHECKING:
    import subprocess

    from undaunted.inprocess.rank.page import Page


class Alone:
    """Used in the watcher's thread, which needs the GIL: who keeps that to himself stays."""

    def __init__(self, page: Page, limit_s: float) -> None:
        """Nothing is limited before `begin`.

        Args:
            page: shows whether the rank has left the call.
            limit_s: how long that may take, seconds.
        """
        self._page = page
        self._limit_s = limit_s
        self._end_at = 0.0

    def begin(self) -> None:
        """The guard is gone."""
        self._end_at = self._end_at or time.monotonic() + self._limit_s

    def end_if_due(self) -> None:
        """End this process if it has had its time and is still in the call."""
        if not self._end_at or time.monotonic() < self._end_at:
            return
        if self._page.phase is not Phase.OUTSIDE:
            text = f"has not left the call {self._limit_s:g} s after its guard has ended"
            _say(f"process {os.getpid()} {text}: it is killed")
            os.kill(os.getpid(), signal.SIGKILL)


class StoppedGuard:
    """Kills a guard that was stopped (SIGSTOP): the rank would hear nothing, and wait for ever.

    What is left to do is what follows the death of any guard. Looks are counted, not time: who
    stops a whole job and lets it go on may reach the rank before the guard.
    """

    def __init__(self, guard: subprocess.Popen[bytes] | None, looks: int) -> None:
        """Begin to look.

        Args:
            guard: of this rank; None = it is not ours to kill.
            looks: so often in a row it may be seen stopped.
        """
        self._guard = guard
        self._looks = looks
        self._seen = 0

    def look(self) -> None:
        """Called again and again, in the same intervals."""
        if self._guard is None:
            return
        stat = read_stat(self._guard.pid)
        self._seen = self._seen + 1 if stat is not None and stat.state == "T" else 0
        if self._seen > self._looks:
            text = f"its guard (process {self._guard.pid}) was stopped and is killed: it leaves"
            _say(f"process {os.getpid()}: {text}")
            self._guard.kill()
            self._guard = None


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # not by way of logging: its lock may be held
        os.write(2, f"[undaunted] {text}\n".encode())
