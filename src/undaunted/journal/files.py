"""The file operations of the journal, over a file system that is passed in.

The module ``os`` is the real file system; tests pass one whose n-th call fails or hangs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Protocol

_NO_DIRECTORY = "its directory does not exist; make it first, or name another file"


class FileSystem(Protocol):
    """The calls of ``os`` that the journal needs; each may raise OSError or take for ever."""

    def open(self, path: str, flags: int, mode: int = ..., /) -> int:
        """Open a file; return its descriptor."""

    def fstat(self, fd: int, /) -> os.stat_result:
        """Size and number of links of an open file."""

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        """Read at an offset."""

    def write(self, fd: int, data: bytes, /) -> int:
        """Write; return how many bytes were taken."""

    def fdatasync(self, fd: int, /) -> None:
        """Wait until the content is on the disk."""

    def close(self, fd: int, /) -> None:
        """Close a descriptor."""

    def mkdir(self, path: str, mode: int = ..., /) -> None:
        """Create one directory."""

    def replace(self, src: str, dst: str, /) -> None:
        """Rename atomically over what is there."""

    def unlink(self, path: str, /) -> None:
        """Remove a file."""


def write_all(fs: FileSystem, fd: int, data: bytes) -> tuple[int, OSError | None]:
    """Write all of ``data``; return how many bytes went out, and the error that stopped it."""
    done = 0
    while done < len(data):
        try:
            taken = fs.write(fd, data[done:])
        except OSError as error:
            return done, error
        if taken <= 0:
            return done, OSError(errno.EIO, "the file takes no more bytes")
        done += taken
    return done, None


def replace_text(fs: FileSystem, path: str, text: str, mode: int = 0o600) -> None:
    """Put ``text`` into the file ``path``, all of it or nothing.

    Missing directories are created with mode 0700; the umask is taken from ``mode``.

    Raises:
        OSError: the file could not be written; what was there before is untouched.
    """
    _make_directories(fs, Path(path).parent)
    temporary = f"{path}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = fs.open(temporary, flags, mode)
    try:
        try:
            error = write_all(fs, fd, text.encode("utf-8", "backslashreplace"))[1]
        finally:
            fs.close(fd)
        if error is not None:
            raise error
        fs.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise


def write_output(file: str | os.PathLike[str], text: str) -> None:
    """Write a file that the user has named: who may read it is for the umask to say.

    Args:
        file: the path; a file that is there is replaced once all is written, also where a link
            leads to it. What is no file, such as /dev/stdout, is written to.
        text: what is in it.

    Raises:
        OSError: the file cannot be written, as where its directory does not exist.
    """
    if _is_file(file):
        path = os.path.realpath(file)
        if not Path(path).parent.exists():  # `replace_text` would make it, for a typing mistake
            raise FileNotFoundError(errno.ENOENT, _NO_DIRECTORY, str(file))
        replace_text(os, path, text, 0o666)
        return
    with Path(file).open("w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)


def _is_file(file: str | os.PathLike[str]) -> bool:
    """Tell whether this is a file, or may become one."""
    try:
        return stat.S_ISREG(Path(file).stat().st_mode)
    except FileNotFoundError:
        return True


def _make_directories(fs: FileSystem, path: Path) -> None:
    try:
        fs.mkdir(str(path), 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make_directories(fs, path.parent)
        _make_directories(fs, path)
