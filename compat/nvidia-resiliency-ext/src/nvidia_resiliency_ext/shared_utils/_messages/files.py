"""Files that one process writes its messages to, for `Aggregator` to put together.

``PREFIX_rank_RANK_PID.msg.MILLISECONDS``: a process begins another file when one has become large,
and removes its oldest ones. A message is appended by one call, so that a killed process leaves
whole messages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from collections import deque
from pathlib import Path

from undaunted.base.directories import make_private

FILE_NAME = re.compile(r"(?:[\w.-]+_)?rank_\S+\.msg\.\d+")
LONGEST_MESSAGE_BYTES = 256 * 1024
_CUT = b" ... (cut)\n"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def check_directory(directory: str) -> None:
    """Make the directory (0700) if it is missing, and refuse one that others could have laid out.

    Raises:
        OSError: it cannot be used; the message says why.
    """
    path = Path(directory)
    make_private(path)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{directory} is no directory, or a symbolic link")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user")


def encode(text: str) -> bytes:
    """Return a message as it stands in a file: one or more whole lines of bounded length."""
    data = text.rstrip("\n").encode(errors="backslashreplace") + b"\n"
    if len(data) <= LONGEST_MESSAGE_BYTES:
        return data
    return data[: LONGEST_MESSAGE_BYTES - len(_CUT)] + _CUT


class Appender(logging.Handler):
    """Appends to one file, which other processes may share. Never raises; a full disk loses.

    A forked child goes on in the same way, with `switch_process` told first.
    """

    def __init__(self, path: str = "", prefix: str = "") -> None:
        """Prepare; the file is opened by the first message.

        Args:
            path: the file.
            prefix: before each line.
        """
        super().__init__()
        self.lost = 0  # messages that could not be written
        self._path = path
        self._prefix = prefix
        self._fd = -1
        self._pid = os.getpid()
        self._torn = False  # the file ends in the middle of a message

    def emit(self, record: logging.LogRecord) -> None:
        """Append one message."""
        try:
            if os.getpid() != self._pid:
                self._pid = os.getpid()
                self.switch_process()
            text = self._prefix + self.format(record).replace("\n", f"\n{self._prefix}")
            self._append(encode(text))
        except Exception:  # noqa: BLE001 - a message must never end the program
            self.lost += 1
            self._release()

    def switch_process(self) -> None:
        """This is a child that was forked."""

    def close(self) -> None:
        """Release the file."""
        self._release()
        super().close()

    def path_to_open(self) -> str:
        """Return the file for the next message when none is open."""
        return self._path

    def is_full(self, size: int) -> bool:  # noqa: ARG002 - of one file, it never is
        """Return whether a file of ``size`` bytes is to be followed by another one."""
        return False

    def _append(self, data: bytes) -> None:
        if self._fd < 0:
            self._fd = os.open(self.path_to_open(), _FLAGS, 0o600)
        if self._torn:
            data = b"\n" + data
        written = os.write(self._fd, data)
        self._torn = written < len(data)
        if self._torn:
            self.lost += 1
        if self.is_full(os.fstat(self._fd).st_size):
            self._release()

    def _release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


class MessageFiles(Appender):
    """Appends to files of this process alone, each bounded, of which the newest are kept."""

    def __init__(self, directory: str, name: str, max_bytes: int, max_files: int) -> None:
        """Prepare; the first file is made by the first message.

        Args:
            directory: exists, see `check_directory`.
            name: what the names of the files begin with, as in ``rank_3``.
            max_bytes: size after which another file is begun.
            max_files: so many files are kept.
        """
        super().__init__()
        self._directory = directory
        self._name = name
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._files: deque[str] = deque()
        self._millis = 0  # in the name of the last file

    def switch_process(self) -> None:
        """Leave the parent's files alone."""
        self._release()
        self._files.clear()
        self._torn = False

    def path_to_open(self) -> str:
        """Name another file, and remove the oldest ones."""
        path = self._new_path()
        self._files.append(path)
        self._torn = False
        while len(self._files) > self._max_files:
            with contextlib.suppress(OSError):
                os.unlink(self._files.popleft())  # noqa: PTH108 - no need for a Path
        return path

    def is_full(self, size: int) -> bool:
        """Return whether the file has reached its size."""
        return size >= self._max_bytes

    def _new_path(self) -> str:
        # Never a name twice, and names have the order of the files, whatever the clock does.
        self._millis = max(int(time.time() * 1000), self._millis + 1)
        while os.path.lexists(path := self._path_at(self._millis)):
            self._millis += 1
        return path

    def _path_at(self, millis: int) -> str:
        return f"{self._directory}/{self._name}_{os.getpid()}.msg.{millis}"
