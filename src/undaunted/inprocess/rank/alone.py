"""A rank whose guard is gone: nobody else would end it if it does not leave by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from undaunted.inprocess.core.reading import Phase

if TYPE_CHECKING:
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
            with contextlib.suppress(OSError):  # not by way of logging: its lock may be held
                os.write(2, f"[undaunted] process {os.getpid()} {text}: it is killed\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
