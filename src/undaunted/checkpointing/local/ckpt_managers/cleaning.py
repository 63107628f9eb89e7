"""Deleting old shards; large files take a while."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Cleaner:
    """Runs one deletion at a time, on a thread of its own where training goes on meanwhile."""

    def __init__(self, timeout_s: float) -> None:
        """Args: how long the one before is waited for, in seconds."""
        self._timeout_s = timeout_s
        self._thread: threading.Thread | None = None

    def run(self, delete: Callable[[], None], in_background: bool) -> None:
        """Delete, after what is being deleted."""
        self.join()
        if not in_background:
            delete()
            return
        self._thread = threading.Thread(target=delete, name="undaunted-local-clean", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for what is being deleted."""
        if self._thread is not None:
            self._thread.join(self._timeout_s)
