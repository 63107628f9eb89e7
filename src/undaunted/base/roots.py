"""Opening files that others name, and never one outside of certain folders.

A path is opened with ``O_PATH`` first, which reads nothing and sets nothing off, whatever it leads
to. The kernel then says what it has found, and that very file is opened. So no link that is changed
in between leads elsewhere, and pipes and devices are never opened.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Code = Literal[
    "invalid_path", "outside_root", "not_found", "not_regular", "not_readable", "empty_file"
]
_LONGEST = 4096  # bytes, as the kernel has it
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
        """Whether a path without links is a root, or below one."""
        return any(real == root or real.startswith(f"{root}/") for root in self.folders)

    def open(self, path: str) -> Opened:
        """Open a regular file for reading. Does not wait for anything but the file system.

        Raises:
            RefusedError: it is not to be read; whether there is something outside is not told.
        """
        if not path.startswith("/") or "\0" in path or len(path) > _LONGEST:
            raise RefusedError("invalid_path", f"{path[:200]!r} is no absolute path of a file")
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except ValueError:
            raise RefusedError("invalid_path", f"{path[:200]!r} is no path") from None
        except OSError as error:
            raise self._refusal(path, error) from None
        try:
            return self._reopen(path, found)
        finally:
            os.close(found)

    def _reopen(self, path: str, found: int) -> Opened:
        itself = f"/proc/self/fd/{found}"
        real = os.readlink(itself)
        if not self.has(real):
            raise self._outside(path)
        try:
            real.encode()
        except UnicodeEncodeError:  # it could not be told in JSON
            raise RefusedError(
                "invalid_path", f"{path!r} leads to a name that is no text"
            ) from None
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("not_regular", f"{path} is no regular file")
        try:
            fd = os.open(itself, _READ)
        except OSError as error:
            raise RefusedError("not_readable", f"{path}: {error.strerror}") from None
        return Opened(fd, real, (status.st_mtime_ns, status.st_size, status.st_ino))

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
