"""Opening files that others name, and never one outside of certain folders.

A path is opened with ``O_PATH`` first, which reads nothing and sets nothing off, whatever it leads
to. The kernel then says what it has found, and that very file is opened. So no link that is changed
in between leads elsewhere, and pipes and devices are never opened.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Code = Literal[
    "invalid_path", "outside_root", "not_found", "not_regular", "not_readable", "empty_file"
]
_LONGEST = 4095  # bytes, as the kernel has it
_MOST_NAMES = 20_000
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
_NO_PATH = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class RefusedError(Exception):
    """A path that is not opened.

    Attributes:
        code: why, in a word for programs.
    """

    def __init__(self, code: Code, message: str) -> None:
        self.code = code
        super().__init__(message)


class Opened(NamedTuple):
    """A file that may be read.

    Attributes:
        fd: its descriptor, the caller's from now on.
        path: its real path, without links.
        stamp: time of the last change (nanoseconds), size (bytes) and number of the file: another
            one means that the content is another.
    """

    fd: int
    path: str
    stamp: tuple[int, int, int]


class Roots:
    """Folders below which files may be read.

    Args:
        folders: at least one.

    Raises:
        ValueError: one is no folder, or is ``/``, below which everything is.
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]]) -> None:
        self.folders = tuple(os.path.realpath(folder) for folder in folders)
        for given, real in zip(folders, self.folders, strict=True):
            if not Path(real).is_dir():
                raise ValueError(f"{os.fspath(given)!r} is no folder; name the one with the logs")
            if real == "/":
                raise ValueError("everything is below '/'; name the folder with the logs")

    def has(self, real: str) -> bool:
        """Return whether a path without links is a root, or below one."""
        return any(real == root or real.startswith(f"{root}/") for root in self.folders)

    def open(self, path: str) -> Opened:
        """Open a regular file for reading. Does not wait for anything but the file system.

        Raises:
            RefusedError: it is not to be read; whether there is something outside is not told.
        """
        with self._found(path) as (found, real):
            status = os.fstat(found)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError("not_regular", f"{path} is no regular file")
            fd = _opened(path, found, _READ)
        return Opened(fd, real, (status.st_mtime_ns, status.st_size, status.st_ino))

    def names(self, path: str) -> tuple[str, list[str]]:
        """Return the real path of a folder and the names in it, at most 20,000.

        Raises:
            RefusedError: it is none, or not to be read.
        """
        with self._found(path) as (found, real):
            if not stat.S_ISDIR(os.fstat(found).st_mode):
                raise RefusedError("not_found", f"{path} is no folder")
            fd = _opened(path, found, _READ | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                return real, [entry.name for entry in islice(entries, _MOST_NAMES)]
        finally:
            os.close(fd)

    @contextmanager
    def _found(self, path: str) -> Iterator[tuple[int, str]]:
        """Find what a path leads to: a descriptor that reads nothing, and its real path."""
        if not path.startswith("/"):
            raise RefusedError("invalid_path", f"{path[:200]!r} is no absolute path")
        if (length := len(path.encode(errors="replace"))) > _LONGEST:
            text = f"the path that begins with {path[:80]!r} has {length} bytes; 4095 are possible"
            raise RefusedError("invalid_path", text)
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except ValueError:
            raise RefusedError("invalid_path", f"{path[:200]!r} is no path") from None
        except OSError as error:
            raise self._refusal(path, error) from None
        try:
            real = os.readlink(f"/proc/self/fd/{found}")
            if not self.has(real):
                raise self._outside(path)
            try:
                real.encode()
            except UnicodeEncodeError:  # it could not be told in JSON
                text = f"{path!r} leads to a name that is no text"
                raise RefusedError("invalid_path", text) from None
            yield found, real
        finally:
            os.close(found)

    def _refusal(self, path: str, error: OSError) -> RefusedError:
        try:
            is_below = self.has(os.path.realpath(path))
        except OSError:  # a link of /proc that may not be read
            is_below = False
        if not is_below:
            return self._outside(path)
        if error.errno in _GONE:
            return RefusedError("not_found", f"{path}: {error.strerror}")
        code: Code = "invalid_path" if error.errno in _NO_PATH else "not_readable"
        return RefusedError(code, f"{path[:200]}: {error.strerror}")

    def _outside(self, path: str) -> RefusedError:
        below = ", ".join(self.folders)
        return RefusedError("outside_root", f"{path[:200]} is not below {below}")


def _opened(path: str, found: int, flags: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{found}", flags)
    except OSError as error:
        raise RefusedError("not_readable", f"{path}: {error.strerror}") from None
