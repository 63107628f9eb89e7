"""What this process has begun to write to which folder, so that no attempt harms another one."""

from __future__ import annotations

import threading
import weakref
from typing import Any

_FOLDERS_KEPT = 1000


class Attempt:
    """Files of one save.

    Attributes:
        names: of the files.
        may_be_committed: somebody has asked for the results: they are never removed here.
    """

    def __init__(self, owner: Any, names: list[str]) -> None:
        self.names = names
        self.may_be_committed = False
        self._owner = weakref.ref(owner)

    @property
    def is_dropped(self) -> bool:
        """Whether nobody is left who could finalize it."""
        return self._owner() is None and not self.may_be_committed


class Attempts:
    """Of the folders that were written to last."""

    def __init__(self) -> None:
        self._folders: dict[str, list[Attempt]] = {}
        self._lock = threading.Lock()

    def has(self, folder: str) -> bool:
        """Return whether this process has begun to write there before."""
        with self._lock:
            return folder in self._folders

    def add(self, folder: str, owner: Any, names: list[str]) -> Attempt:
        """Remember an attempt as long as its owner is there, or its files may be."""
        attempt = Attempt(owner, names)
        with self._lock:
            self._folders.setdefault(folder, []).append(attempt)
            if len(self._folders) > _FOLDERS_KEPT:
                del self._folders[next(iter(self._folders))]
        return attempt

    def take_dropped(self, folder: str) -> list[str]:
        """Return the files of attempts that can no longer become a checkpoint, once."""
        with self._lock:
            attempts = self._folders.get(folder, [])
            dropped = [attempt for attempt in attempts if attempt.is_dropped]
            attempts[:] = [
                attempt
                for attempt in attempts
                if attempt not in dropped and not attempt.may_be_committed
            ]
        return [name for attempt in dropped for name in attempt.names]
