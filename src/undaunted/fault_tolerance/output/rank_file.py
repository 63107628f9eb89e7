"""The files that ranks append to, and how the oldest part of one is given back.

Ranks write to the files themselves, and so do their children: nobody can have them begin a new
file. So the launcher frees the disk space of the oldest part while they go on writing, which holds
nobody up and moves nothing. The part that is gone reads as zeros until the round is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.directories import make_private

if TYPE_CHECKING:
    from undaunted.fault_tolerance.output.sink import Sink

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_KEEP_SIZE_PUNCH_HOLE = 0x1 | 0x2  # flags of fallocate(2)
_BLOCK = 64 * 1024  # space is freed in multiples of it
_CHUNK = 1 << 20


class RankFile:
    """One file that a rank appends to; one descriptor for all who follow it, in any thread.

    Attributes:
        freed: what lies before this position is gone, or is just about to be.
    """

    def __init__(self, path: str) -> None:
        self.path, self.freed = path, 0
        self._fd = -1
        self._users = 0
        self._lock = threading.Lock()

    def open(self) -> int:
        """Open the file for one more user; return its present size.

        It is created (0600, directories 0700) if the rank has not done so yet.

        Raises:
            OSError: not possible; a symbolic link is not followed.
        """
        with self._lock:
            if not self._users:
                make_private(Path(self.path).parent)
                self._fd = os.open(self.path, _FLAGS, 0o600)
            self._users += 1
        return self.size()

    def close(self) -> None:
        """One user less; the last one closes the file."""
        with self._lock:
            self._users -= 1
            if not self._users:
                os.close(self._fd)

    def size(self) -> int:
        """Position of its end."""
        return os.fstat(self._fd).st_size

    def is_regular(self) -> bool:
        """Return whether it is neither a device nor a pipe."""
        return stat.S_ISREG(os.fstat(self._fd).st_mode)

    def read(self, position: int, count: int) -> bytes | None:
        """Read up to ``count`` bytes; none if the disk does not give them.

        Returns:
            None if what was there is gone.
        """
        try:
            data = os.pread(self._fd, count, position)
        except OSError:
            data = b""
        return None if self.freed > position else data  # zeros, as far as it was freed

    def free(self, end: int) -> bool:
        """Free the space before ``end``. Positions stay as they are. One thread calls it.

        Returns:
            False if the file system cannot do that.
        """
        before, self.freed = self.freed, end  # noted first: readers look at it last
        freed = self._punch(before, end)
        if not freed:
            self.freed = before
        return freed

    def can_free(self) -> bool:
        """Return whether the file system can do that, tried where nothing is."""
        return self._punch(self.size(), self.size() + _BLOCK)

    def _punch(self, begin: int, end: int) -> bool:
        length = ctypes.c_int64(end - begin)
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        return not fallocate(self._fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(begin), length)


class Bound:
    """Keeps the newest part of one file.

    While the round runs, the file begins with zeros in place of what is gone. In the end it is
    replaced by one that has the rest alone.
    """

    in_line = False

    def __init__(self, file: RankFile, most: int) -> None:
        """Bound ``file`` to about ``most`` bytes: three quarters of it at least are kept."""
        self.file = file
        self._most = most

    def open(self, sink: Sink) -> None:
        """Open the file.

        Raises:
            OSError: not possible, or the beginning of the file cannot be freed.
        """
        del sink
        self.file.open()
        if not self.file.is_regular():
            self._most = 0  # nothing of it is kept anywhere
        elif not self.file.can_free():
            self.file.close()
            raise OSError("its file system cannot free the beginning of a file")

    def step(self) -> bool:
        """Free the oldest quarter, or more, if there is too much. There is never more to do."""
        size, freed = self.file.size(), self.file.freed
        if self._most and size - freed > self._most:
            end = (size - self._most * 3 // 4) // _BLOCK * _BLOCK
            if end > freed:
                self.file.free(end)
        return False

    def finish(self) -> None:
        """Replace the file by one that has the rest alone. Nobody writes to it any more.

        Raises:
            OSError: not possible; the file stays as it is.
        """
        self.step()
        if not self.file.freed:
            return
        made = f"{self.file.path}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        out = os.open(made, flags, 0o600)
        try:
            with os.fdopen(out, "wb") as file:
                position = self.file.freed
                begun = self.file.read(position, _BLOCK) or b""
                position += begun.find(b"\n") + 1  # 0 of a line that is too long
                text = f"[undaunted] {position} bytes of older output are gone (--log-max-bytes)"
                file.write(f"{text}\n".encode())
                while chunk := self.file.read(position, _CHUNK):
                    position += file.write(chunk)
            os.replace(made, self.file.path)  # noqa: PTH105 - text paths, as everywhere here
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(made)  # noqa: PTH108
            raise

    def complaint(self, why: str) -> str:
        """Say what has not worked."""
        path, freed = self.file.path, self.file.freed
        if freed:
            return f"{path} begins with {freed} zeros in place of older output: {why}"
        return f"{path} may grow beyond --log-max-bytes: {why}"

    def unread_bytes(self) -> int:
        """Nothing is copied from it."""
        return 0

    skipped_bytes = unread_bytes

    def close(self, *, complete: bool) -> None:
        """Release the file."""
        del complete
        self.file.close()
