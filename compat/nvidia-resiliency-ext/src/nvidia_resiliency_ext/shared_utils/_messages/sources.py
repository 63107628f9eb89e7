"""The message files of a directory: finding them, and reading what they gained."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from nvidia_resiliency_ext.shared_utils._messages.files import FILE_NAME, LONGEST_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHUNK_BYTES = LONGEST_MESSAGE_BYTES
_MOST_OPEN = 256
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Sources:
    """Files of one directory, each read once from its beginning to its end.

    Files are kept open, so that the rest of one that its process removes is read all the same.
    """

    def __init__(self, directory: str, done: Mapping[str, int]) -> None:
        """Begin where ``done`` (name of the file: position) says, else at the beginning."""
        self._directory = directory
        self._positions = dict(done)  # read up to here
        self._fds: dict[str, int] = {}  # in the order of their last growth

    def look(self) -> list[str]:
        """Return the names of the files there are, by their age as their names say it."""
        with contextlib.suppress(OSError), os.scandir(self._directory) as found:
            names = [entry.name for entry in found if FILE_NAME.fullmatch(entry.name)]
            removed = [name for name in self._fds if name not in set(names)]
            return [*removed, *sorted(names, key=_age)]
        return list(self._fds)

    def read(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield what a file gained: position and whole lines, a chunk at a time."""
        while (fd := self._open(name)) is not None:
            position = self._positions.get(name, 0)
            try:
                data = os.pread(fd, CHUNK_BYTES, position)
            except OSError:
                data = b""
            whole = data.rfind(b"\n") + 1
            if len(data) == CHUNK_BYTES:
                whole = whole or len(data)  # not from us: a line without an end
            if not whole:
                return
            self._positions[name] = position + whole
            self._fds[name] = self._fds.pop(name)
            yield position, data[:whole]

    def drop_removed(self) -> list[str]:
        """Forget files that are gone; return their names."""
        gone = [name for name in self._positions if not self._is_there(name)]
        for name in gone:
            self._positions.pop(name)
            self._close(name)
        return gone

    def close(self) -> None:
        """Release every file."""
        for name in list(self._fds):
            self._close(name)

    def _is_there(self, name: str) -> bool:
        return os.path.lexists(f"{self._directory}/{name}")

    def _open(self, name: str) -> int | None:
        if name in self._fds:
            return self._fds[name]
        path = f"{self._directory}/{name}"
        try:
            if os.lstat(path).st_size <= self._positions.get(name, 0):
                self._positions.setdefault(name, 0)
                return None
            if len(self._fds) >= _MOST_OPEN:
                self._close(next(iter(self._fds)))
            self._fds[name] = os.open(path, _FLAGS)
        except OSError:
            return None
        return self._fds[name]

    def _close(self, name: str) -> None:
        fd = self._fds.pop(name, -1)
        if fd >= 0:
            os.close(fd)


def _age(name: str) -> tuple[int, str]:
    return int(name.rpartition(".")[2]), name
