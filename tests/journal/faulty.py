"""A file system whose calls fail or hang when told, over the real one."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any


class FaultyFiles:
    """Stands in for ``os`` in the journal; counts calls and breaks some of them.

    Attributes:
        calls: names of the calls made so far.
        fail_at: index into ``calls`` of the first call that fails, None for none.
        fail_count: how many calls fail from there.
        short: a failing ``write`` writes half of its bytes before the error is seen.
        full: every open and write fails with ENOSPC while this is set.
        gate: while cleared, every ``write`` waits (at most 30 s): a disk that hangs.
    """

    NAMES = ("open", "fstat", "pread", "write", "fdatasync", "close", "mkdir", "replace", "unlink")

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail_at: int | None = None
        self.fail_count = 1
        self.short = False
        self.full = False
        self.gate = threading.Event()
        self.gate.set()
        self.hanging = threading.Event()

    def __getattr__(self, name: str) -> Any:
        if name not in self.NAMES:
            raise AttributeError(name)
        return lambda *args: self._call(name, *args)

    def _call(self, name: str, *args: Any) -> Any:
        index = len(self.calls)
        self.calls.append(name)
        if name == "write" and not self.gate.is_set():
            self.hanging.set()
            self.gate.wait(30)
        if self.full and name in ("open", "write"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fail_at is not None and self.fail_at <= index < self.fail_at + self.fail_count:
            return self._fail(name, *args)
        return getattr(os, name)(*args)

    def _fail(self, name: str, *args: Any) -> Any:
        if name == "write" and self.short:
            fd, data = args
            self.fail_at = len(self.calls)  # what is left is tried again, and fails
            self.short = False
            return os.write(fd, data[: max(1, len(data) // 2)])
        if name == "close":
            os.close(*args)  # as Linux does: the descriptor is gone whatever close says
        raise OSError(errno.EIO, os.strerror(errno.EIO))
