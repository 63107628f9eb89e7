"""The records of logs on disk: what was submitted is still known when the service starts again."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.directories import make_private
from undaunted.services.results import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_LONGEST_LINE = 1 << 20
_TIMES = 4  # lines for each record, until the file is written anew
_FEW = 1000  # lines: never for less
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LedgerError(Exception):
    """The directory cannot be used; the message says why."""


class Ledger:
    """A file with the newest record of each log, a line each; earlier lines of a path do not count.

    Args:
        directory: for the file and a lock; made if it is missing.

    Raises:
        LedgerError: another service uses it, or it cannot be used.

    Attributes:
        problem: why the last writing went wrong, "" = it did not.
        damaged: where a file with lines that nobody understands was moved, None = there was none.
    """

    def __init__(self, directory: Path) -> None:
        self.problem = ""
        self.damaged: Path | None = None
        self._path = directory / "ledger.jsonl"
        self._lines: dict[str, bytes] = {}  # by path; not on disk yet
        self._given = self._written = 0  # records, ever
        self._in_file = 0
        self._turn = asyncio.Lock()
        try:
            make_private(directory)
            self._lock = os.open(directory / "lock", _FLAGS, 0o600)
        except OSError as error:
            raise LedgerError(f"{directory}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise LedgerError(f"{directory} is in use by another service") from None

    def read(self) -> list[Log]:
        """Return the records. A last line that is cut off is left out, as after a kill.

        A file in which other lines are damaged is moved aside, as another one will be written.

        Raises:
            LedgerError: the file cannot be read.
        """
        try:
            if not self._path.is_file() and self._path.exists():
                raise LedgerError(f"{self._path} is no file")
            with self._path.open("rb") as file:
                lines = iter(lambda: file.readline(_LONGEST_LINE), b"")
                logs = [_decoded(line) or line for line in lines]
            whole = [log for log in logs if isinstance(log, Log)]
            cut_off = [log for log in logs[-1:] if isinstance(log, bytes) and log[-1:] != b"\n"]
            if len(whole) + len(cut_off) < len(logs):
                self.damaged = self._path.with_name(f"ledger-damaged-{time.time_ns()}.jsonl")
                self._path.replace(self.damaged)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerError(f"{self._path}: {error.strerror}") from None
        return whole

    def write_anew(self, logs: Sequence[Log]) -> None:
        """Replace the file by one with these records alone. On a full disk, when there is room.

        Raises:
            LedgerError: it cannot be written.
        """
        try:
            self._replace([_encoded(log) for log in logs])
        except OSError as error:
            if self.damaged is not None and not self._path.exists():
                self.damaged.replace(self._path)  # what can be read of it is read the next time
            elif error.errno in _FULL:
                self.problem = error.strerror or str(error)
                self._in_file = sys.maxsize  # no line after one that is cut off
                return
            raise LedgerError(f"{self._path}: {error.strerror}") from None

    async def keep(self, log: Log, logs: Callable[[], Sequence[Log]]) -> None:
        """Return when a record is on disk. Records that are given meanwhile are written together.

        Args:
            log: the record.
            logs: returns all, where the file has become long.

        Raises:
            OSError: it is not, and is tried again with the next one.
        """
        self._lines[log.path] = _encoded(log)
        self._given += 1
        mine = self._given
        async with self._turn:
            if self._written >= mine:
                return
            write, content = self._append, [*self._lines.values()]
            if self._in_file > _FEW + _TIMES * len(all_of := logs()):
                write, content = self._replace, [_encoded(one) for one in all_of]
            given, lines = self._given, self._lines
            self._lines = {}
            try:
                await asyncio.to_thread(write, content)
            except OSError as error:
                self._lines = lines | self._lines
                self.problem = error.strerror or str(error)
                raise
            self._written = given
            self.problem = ""

    def close(self) -> None:
        """Let another service use the directory."""
        os.close(self._lock)

    def _append(self, lines: Sequence[bytes]) -> None:
        fd = os.open(self._path, _FLAGS, 0o600)
        try:
            size = os.fstat(fd).st_size
            try:
                _write(fd, b"".join(lines))
            except OSError:
                os.truncate(fd, size)  # what was cut off would damage the next line
                raise
        finally:
            os.close(fd)
        self._in_file += len(lines)

    def _replace(self, lines: Sequence[bytes]) -> None:
        draft = self._path.with_suffix(".draft")
        with suppress(FileNotFoundError):
            draft.unlink()
        fd = os.open(draft, _FLAGS | os.O_EXCL, 0o600)
        try:
            _write(fd, b"".join(lines))
        finally:
            os.close(fd)
        draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._in_file = len(lines)


def _write(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
    os.fsync(fd)


def _encoded(log: Log) -> bytes:
    return msgspec.json.encode(log) + b"\n"


def _decoded(line: bytes) -> Log | None:
    try:
        return msgspec.json.decode(line, type=Log)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
