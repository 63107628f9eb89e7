"""Files below one directory, named by others: nothing outside of it can be reached."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from undaunted.logs.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPEN_FILES = 128
_LONGEST_PATH = 1024
_LONGEST_NAME = 255
_DEEPEST = 16
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
_NONBLOCK = os.O_NONBLOCK  # a FIFO in the file's place does not hold us up


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
    """The files. Used by one thread, which may wait for the disk.

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
            self.write([b"\n"])  # whoever wrote the last line was killed


def _enter(directory: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=directory)
        return os.open(name, _DIRECTORY, dir_fd=directory)
