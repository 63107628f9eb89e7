"""A small file system for the files of one run, which can be filled.

It lies on the run's ``work`` directory, and only in a mount namespace: other processes do not see
it. A helper process makes both; the descriptors that are opened then keep them alive.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.chaos.nemesis import helper, namespaces
from undaunted.chaos.nemesis.helper import NotPossibleError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILL = ".undaunted-chaos-fill"
_CHUNK = bytes(1 << 20)
_MOST_OF_MEMORY = 0.25


class SmallDisk:
    """A small disk that was mounted. The owner calls `close`."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """Make a file system of this size on an empty directory.

        Raises:
            NotPossibleError: the machine does not allow it.
        """
        self.namespaces: tuple[int, ...] = ()
        self._fd = -1
        with helper.running(__name__, [str(directory), str(size_bytes)]) as pid:
            try:
                self.namespaces = helper.open_namespaces(pid, ("user", "mnt"))
                inside = f"/proc/{pid}/root{directory}"
                self._fd = os.open(inside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                self.close()
                raise NotPossibleError(f"its namespace cannot be entered: {error}") from None

    @property
    def directory(self) -> Path:
        """The path of its files, for this process."""
        return Path(f"/proc/self/fd/{self._fd}")

    def fill(self) -> int:
        """Take all space that is left; return how many bytes that were."""
        written = 0
        with (self.directory / _FILL).open("ab", buffering=0) as file:
            chunk = _CHUNK
            while chunk:
                try:
                    written += file.write(chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk = chunk[: len(chunk) // 2]
        return written

    def empty(self) -> None:
        """Give the space back."""
        (self.directory / _FILL).unlink(missing_ok=True)

    def copy_to(self, directory: Path) -> None:
        """Copy what the run has left, since it goes away with the last process.

        Raises:
            OSError: something cannot be copied.
        """
        self.empty()
        shutil.copytree(self.directory, directory, symlinks=True, dirs_exist_ok=True)

    def close(self) -> None:
        """Let go of it: the kernel removes it once no process uses it."""
        for fd in (*self.namespaces, self._fd):
            if fd >= 0:
                os.close(fd)
        self.namespaces, self._fd = (), -1


def not_possible(directory: Path, size_bytes: int) -> str:
    """Say why this machine allows no small disk of this size, "" if it does.

    Args:
        directory: an empty one, to try.
        size_bytes: of the small disk.
    """
    if size_bytes > _free_memory() * _MOST_OF_MEMORY:
        return (
            f"a file system of {size_bytes >> 20} MiB in memory is more than a quarter of what is "
            "free; name a smaller one with --disk-size"
        )
    try:
        SmallDisk(directory, len(_CHUNK)).close()
    except NotPossibleError as error:
        return str(error)
    return ""


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def main(words: Sequence[str]) -> int:
    """Be the helper: mount, say so, and stay until standard input ends."""
    directory, size = words
    try:
        namespaces.make_mount_namespace()
        namespaces.mount_tmpfs(Path(directory), int(size))
    except OSError as error:
        helper.answer(f"no file system can be mounted here ({error})")
    else:
        helper.answer()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
