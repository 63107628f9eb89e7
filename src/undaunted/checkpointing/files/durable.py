"""Files and folders that are there after a loss of power. Errors name the path."""
# pathlib would double the start of the writer:
# ruff: noqa: PTH102, PTH105, PTH108, PTH112, PTH120

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.files.direct import NOT_OFFERED, file_mode, folder_mode

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_BYTES = 1 << 20


def make_folder(path: str) -> None:
    """Make a folder and those above it that are missing, durably; see `folder_mode`.

    Raises:
        OSError: it cannot be made, or is something else.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above != path:
        make_folder(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, folder_mode())
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
    sync_folder(above)


def sync_folder(path: str) -> None:
    """Make durable what a folder says about its files: which there are, and their names."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(path):
            os.fsync(fd)
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise
    finally:
        os.close(fd)


def write_file(path: str, content: bytes) -> None:
    """Write a file and make its content durable; its name is so once its folder is synced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, file_mode())
    try:
        with _naming(path):
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: str, content: bytes, temporary: str) -> None:
    """Have a file with this content in place of the former, or the former; durably.

    Args:
        path: of the file.
        content: the new one.
        temporary: a path in the same folder that nobody else uses.
    """
    with replacing(path, temporary):
        write_file(temporary, content)


@contextlib.contextmanager
def replacing(path: str, temporary: str) -> Iterator[None]:
    """Put a temporary file in place of another at the end, durably; after an error, remove it.

    Args:
        path: of the file, with its folder.
        temporary: a path in the same folder, where the caller writes and syncs the new content.
    """
    try:
        yield
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def read_file(path: str, most: int) -> bytes:
    """Read a regular file that is not longer than ``most`` bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with _naming(path):
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise OSError(errno.EFBIG, "not a regular file, or too large", path)
            parts = []
            while part := os.read(fd, _READ_BYTES):
                parts.append(part)
            return b"".join(parts)
    finally:
        os.close(fd)


def remove_tree(path: str) -> None:
    """Remove a folder and what is in it; symbolic links are removed and not followed.

    Others may be removing it too.

    Raises:
        OSError: something cannot be removed; it is named with its whole path.
    """
    import shutil

    def fail(_: object, failed: str, why: Any) -> None:
        error = why if isinstance(why, OSError) else why[1]
        number, words = error.errno or errno.EPERM, error.strerror or "".join(map(str, error.args))
        raise OSError(number, words, failed) from error

    # The words of the two differ by the version of Python.
    on_error: Any = {"onexc" if sys.version_info >= (3, 12) else "onerror": fail}
    while True:
        try:
            shutil.rmtree(path, **on_error)
        except FileNotFoundError:
            if os.path.lexists(path):
                continue  # another process has removed a file just before
        return


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors of calls with a descriptor do not name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, path) from error
