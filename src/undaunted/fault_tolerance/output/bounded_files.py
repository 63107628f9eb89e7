"""Files of ranks that keep the newest part of what was printed, and not more.

Ranks write to the files themselves, and so do their children: nobody can have them begin a new
file. So a thread frees the disk space of the oldest part while they go on writing, which holds
nobody up and moves nothing. The part that is gone reads as zeros until the round is over; then each
file is replaced by one that has the rest alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.directories import make_private
from undaunted.logs import holes
from undaunted.logs.growth import Growth

if TYPE_CHECKING:
    from collections.abc import Iterable

_BATCH_S = 0.1  # a rank that prints all the time wakes us at most this often
_LATE_S = 5.0  # for the thread to end that was started after the round
_BLOCK = 64 * 1024  # space is freed in multiples of it
_CHUNK = 1 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class BoundedFile:
    """One file that others append to. Used by one thread.

    Attributes:
        freed: so many bytes of its beginning are gone.
    """

    def __init__(self, path: str, most: int) -> None:
        """Open the file; it is created (0600) if the rank has not done so yet.

        Raises:
            OSError: not possible, or the beginning of the file cannot be freed.
        """
        make_private(Path(path).parent)
        self.path, self.freed = path, 0
        self._most = most
        self._fd = os.open(path, _FLAGS, 0o600)
        about = os.fstat(self._fd)
        if not stat.S_ISREG(about.st_mode):
            self._most = 0  # a device, a pipe: nothing of it is kept anywhere
        elif not holes.free(self._fd, about.st_size, about.st_size + _BLOCK):  # where nothing is
            os.close(self._fd)
            raise OSError("its file system cannot free the beginning of a file")

    def trim(self) -> None:
        """Free the oldest quarter, or more, if there is too much."""
        size = os.fstat(self._fd).st_size
        if not self._most or size - self.freed <= self._most:
            return
        end = (size - self._most * 3 // 4) // _BLOCK * _BLOCK
        if end > self.freed and holes.free(self._fd, self.freed, end):
            self.freed = end

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def shorten(self) -> None:
        """Replace the file by one that has the rest alone. Nobody writes to it any more.

        Raises:
            OSError: not possible; the file stays as it is.
        """
        if not self.freed:
            return
        made = f"{self.path}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        out = os.open(made, flags, 0o600)
        try:
            with os.fdopen(out, "wb") as file:
                position = self.freed + self._cut_line()
                said = f"[undaunted] {position} bytes of older output are gone (--log-max-bytes)"
                file.write(f"{said}\n".encode())
                while chunk := os.pread(self._fd, _CHUNK, position):
                    position += file.write(chunk)
            os.replace(made, self.path)  # noqa: PTH105 - text paths, as everywhere here
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(made)  # noqa: PTH108
            raise

    def _cut_line(self) -> int:
        """Return how many bytes of a line are left whose beginning is gone."""
        return os.pread(self._fd, _BLOCK, self.freed).find(b"\n") + 1  # 0 of one that is too long


class BoundedFiles:
    """Bounds the files of one round from `start` to `close`.

    ``problems`` says which files are not bounded, and why.
    """

    def __init__(self, paths: Iterable[str], most: int) -> None:
        """Prepare.

        Args:
            paths: of files that ranks append to.
            most: bytes that each may have; 0 = any number. More for a moment.
        """
        self.problems: list[str] = []
        self._paths = list(dict.fromkeys(paths)) if most else []
        self._most = most
        self._files: list[BoundedFile] = []
        self._growth: Growth | None = None
        self._closing = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the files and begin to look at them. Call it before the ranks start.

        On a disk that does not answer for a while, another thread may close it meanwhile.
        """
        if not self._paths or self._closing:
            return
        growth = self._growth = Growth()
        for path in self._paths:
            self._open(path, growth)
        thread = threading.Thread(
            target=self._run, args=(growth,), name="undaunted-log-bound", daemon=True
        )
        thread.start()
        self._thread = thread
        if self._closed:  # and nobody will do it again
            self._release(_LATE_S)

    def request_close(self) -> None:
        """The ranks have ended. Does not wait."""
        if self._closing:
            return
        self._closing = True
        if self._growth is not None:
            self._growth.wake()

    def close(self, timeout_s: float) -> bool:
        """Wait until the files have their last form.

        Returns:
            False if the disk hangs; the thread then ends with the process.
        """
        self.request_close()
        self._closed = True
        return self._thread is None or self._release(timeout_s)

    def _release(self, timeout_s: float) -> bool:
        """Wait for the thread and give back what it used; return whether it has ended."""
        assert self._thread is not None, "it was started"
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.problems.append("files of the ranks could not be shortened in time")
            return False
        if self._growth is not None:
            self._growth.close()
        return True

    def _open(self, path: str, growth: Growth) -> None:
        try:
            self._files.append(BoundedFile(path, self._most))
            growth.watch(path)
        except OSError as error:
            why = error.strerror or str(error)
            self.problems.append(f"{path} may grow beyond --log-max-bytes: {why}")

    def _run(self, growth: Growth) -> None:
        try:
            while not self._closing:
                for file in self._files:
                    file.trim()
                growth.wait(time.monotonic() + _BATCH_S)
            for file in self._files:
                self._finish(file)
        finally:
            growth.stop_watching()
            for file in self._files:
                file.close()

    def _finish(self, file: BoundedFile) -> None:
        try:
            file.trim()
            file.shorten()
        except OSError as error:
            self.problems.append(
                f"{file.path} begins with {file.freed} zeros in place of older output: "
                f"{error.strerror or error}"
            )
