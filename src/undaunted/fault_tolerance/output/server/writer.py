"""The thread of the log server that writes, and alone waits for the disk.

Its files lie below one directory; others name them, and can reach nothing outside of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.fault_tolerance.output.server.messages import Lines

_RETRY_S = 1.0
_NOTED = 1000  # paths whose losses are counted
_BATCH = 16  # messages written between two answers
# A file system that has no room, or does not answer now, may do so later.
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ENFILE}
_PASSING |= {errno.EMFILE, errno.ETIMEDOUT, errno.ENOMEM}
_OPEN_FILES = 128
_LONGEST_PATH = 1024
_LONGEST_NAME = 255
_DEEPEST = 16
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
_NONBLOCK = os.O_NONBLOCK  # a FIFO in the file's place does not hold us up


class Writer:
    """Writes messages in their order. What may wait is bounded by who hands them in.

    Args:
        root: directory of the logs.
        written: called by the thread with messages that are written, or never will be.
        say: called by the thread with lines about what cannot be written.
    """

    def __init__(
        self, root: str, written: Callable[[list[Lines]], None], say: Callable[[str], None]
    ) -> None:
        self._root, self._written, self._say = root, written, say
        self._queue: queue.SimpleQueue[Lines | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lost: dict[str, tuple[int, int]] = {}  # lines and bytes, by path
        self._unwritten = 0
        self._begun: Lines | None = None
        self._full = False
        self._thread = threading.Thread(target=self._run, name="undaunted-log-writer", daemon=True)
        self._thread.start()

    def add(self, lines: Lines) -> None:
        """Have a message written soon."""
        self._queue.put(lines)

    def close(self, timeout_s: float) -> bool:
        """Write what is waiting; False if that takes longer, or the disk does not take it."""
        self._queue.put(None)
        deadline = time.monotonic() + timeout_s
        self._thread.join(max(0.0, timeout_s - _RETRY_S))
        self._closing.set()  # a full disk is tried once more
        self._thread.join(max(0.0, deadline - time.monotonic()) + _RETRY_S)
        return not self._thread.is_alive() and not self._unwritten

    def _run(self) -> None:
        store = Store(self._root)
        try:
            while (batch := self._take()) is not None:
                for lines in batch:
                    self._write(store, lines)
                if batch:
                    self._written(batch)
        finally:
            store.close()

    def _take(self) -> list[Lines] | None:
        """Wait for messages; None = there will be no more."""
        first = self._queue.get()
        if first is None:
            return None
        batch = [first]
        while len(batch) < _BATCH:
            try:
                lines = self._queue.get_nowait()
            except queue.Empty:
                break
            if lines is None:
                self._queue.put(None)
                break
            batch.append(lines)
        return batch

    def _write(self, store: Store, lines: Lines) -> None:
        while not self._written_once(store, lines):
            if self._closing.wait(_RETRY_S) and not self._written_once(store, lines):
                self._unwritten += len(lines.data)
                return

    def _written_once(self, store: Store, lines: Lines) -> bool:
        """Write a message or the rest of it; False = try again."""
        path = lines.path
        try:
            file = store.file(path)
        except ValueError as error:
            self._lose(lines, str(error))
            return True
        except OSError as error:
            if error.errno in _PASSING:
                self._complain(path, error.strerror or str(error))
                return False
            self._lose(lines, f"{path} in {self._root} cannot be written: {error.strerror}")
            return True
        if file.blocked:
            file.flush()
        if not file.blocked and self._begun is not lines:
            self._begun = lines
            file.write([self._notice(path), lines.data])
        if file.blocked:
            self._complain(path, file.error)
        else:
            self._full = False
        return not file.blocked

    def _notice(self, path: str) -> bytes:
        count, size = self._lost.pop(path, (0, 0))
        return lost_here(count, size) if count else b""

    def _lose(self, lines: Lines, why: str) -> None:
        known = self._lost.get(lines.path)
        if known is None:
            self._say(f"lines of node's logs are lost: {why}")
            while len(self._lost) >= _NOTED:
                del self._lost[next(iter(self._lost))]
        count, size = known or (0, 0)
        self._lost[lines.path] = (count + lines.data.count(b"\n"), size + len(lines.data))

    def _complain(self, path: str, why: str) -> None:
        if not self._full:
            self._full = True
            self._say(f"{path} in {self._root} cannot be written: {why}; trying again")


def lost_here(lines: int, size: int) -> bytes:
    """Return the line that stands in a log in place of others."""
    amount = f"{size} bytes" if size < 1000 else f"{size / 1000:.1f} kB"
    if size >= 1_000_000:
        amount = f"{size / 1e6:.1f} MB"
    return f"[undaunted] {lines} lines ({amount}) lost here\n".encode()


def parts_of(path: str) -> list[str]:
    """Split a path that a peer has named.

    Raises:
        ValueError: it may lead out of the directory, or is none.
    """
    parts = path.split("/")
    if (
        len(path) > _LONGEST_PATH
        or len(parts) > _DEEPEST
        or "\0" in path
        or any(part in {"", ".", ".."} or len(os.fsencode(part)) > _LONGEST_NAME for part in parts)
    ):
        raise ValueError(f"{path[:200]!r} is no path below the directory of the logs")
    return parts


class Store:
    """The files of the logs. Used by one thread, which may wait for the disk.

    Args:
        root: absolute path of the directory; made if it is missing, mode 0700.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: OrderedDict[str, _File] = OrderedDict()

    def file(self, path: str) -> LogFile:
        """Return the open file of a path, which is made if it is missing.

        Raises:
            ValueError: it is no path below the directory.
            OSError: not possible; symbolic links are not followed, below the directory.
        """
        known = self._files.get(path)
        if known is None:
            known = _File(path, self._open(parts_of(path)))
            self._files[path] = known
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return known

    def close(self) -> None:
        """Release all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open(self, parts: Sequence[str]) -> int:
        os.makedirs(self._root, 0o700, exist_ok=True)  # noqa: PTH103 - the user's own path
        directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                below = _enter(directory, part)
                os.close(directory)
                directory = below
            fd = os.open(parts[-1], _FILE | _NONBLOCK, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
        return fd


class _File(LogFile):
    """A log file that is open already."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.error = ""
        self._fd = fd
        self._waiting = []
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) not in {b"\n", b""}:
            self.write([b"\n"])  # the writer of the last line was killed


def _enter(directory: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=directory)
        return os.open(name, _DIRECTORY, dir_fd=directory)
