"""Follows the journals of a run directory: reads what was added, never anything twice."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from errno import ELOOP
from typing import TYPE_CHECKING

from undaunted.base.inotify import Inotify
from undaunted.journal.lines import MAX_LINE
from undaunted.journal.reader import Journal, find_journals, take_line

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.journal.events import AnyEvent

# What is read at once, bytes: so much takes some 50 ms.
_PIECE = 4 << 20
# Enough for any job that one screen can be about.
_MOST_FILES = 10_000


@dataclass(slots=True)
class JournalFile:
    """One journal, followed. No file is kept open.

    Attributes:
        path: the file.
        behind: bytes that are there and were not read yet.
        unreadable: lines that gave no event.
    """

    path: Path
    behind: int = 0
    unreadable: int = 0
    _inode: int = 0
    _offset: int = 0
    _rest: bytes = b""  # the beginning of a line whose end is not written yet
    _too_long: bool = False  # in the middle of a line that is too long to be ours

    def read(self, most: int = _PIECE) -> list[AnyEvent]:
        """Return the next events, of at most ``most`` bytes.

        A file that has become shorter, or is another one, is read from its beginning.

        Raises:
            OSError: the file cannot be read; what it had told still holds.
        """
        # A pipe in the place of a journal must not be waited for.
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(fd)
            if about.st_ino != self._inode or about.st_size < self._offset:
                self._inode, self._offset = about.st_ino, 0
                self._rest, self._too_long = b"", False
            data = os.pread(fd, most, self._offset)
        finally:
            os.close(fd)
        self._offset += len(data)
        self.behind = max(0, about.st_size - self._offset) if data else 0
        return self._events(data)

    @property
    def done(self) -> int:
        """Bytes that were read."""
        return self._offset

    def _events(self, data: bytes) -> list[AnyEvent]:
        *lines, rest = (self._rest + data).split(b"\n")
        if self._too_long and lines:
            del lines[0]
            self._too_long = False
        if len(rest) > MAX_LINE:
            self.unreadable += not self._too_long
            self._too_long, rest = True, b""
        self._rest = b"" if self._too_long else rest
        journal = Journal(self.path)
        for line in lines:
            if len(line) >= MAX_LINE:
                self.unreadable += 1
            elif line.strip():
                take_line(journal, 0, line + b"\n")
        self.unreadable += journal.unreadable
        return journal.events


@dataclass(slots=True)
class Journals:
    """All journals of a run directory, or the one that is named itself.

    Attributes:
        files: by name; one that vanishes stays, with what it has told.
        problem: why the directory, or a file, cannot be read, "" = it can.
    """

    run_dir: Path
    files: dict[str, JournalFile] = field(default_factory=dict)
    problem: str = ""

    def read(self) -> list[tuple[str, list[AnyEvent]]]:
        """Return the next events by the name of their file; a piece of each file."""
        self.problem = ""
        try:
            self._find()
        except OSError as error:
            self.problem = f"{self.run_dir}: {error.strerror}"
        found = []
        for name, file in self.files.items():
            found.append((name, self._read(file)))
        return found

    @property
    def progress(self) -> float | None:
        """Part of what was there at the last look that was read, 0 to 1; None = all."""
        behind = sum(file.behind for file in self.files.values())
        done = sum(file.done for file in self.files.values())
        return done / (done + behind) if behind else None

    @property
    def unreadable(self) -> int:
        """Lines of all files that gave no event."""
        return sum(file.unreadable for file in self.files.values())

    def _read(self, file: JournalFile) -> list[AnyEvent]:
        try:
            return file.read()
        except OSError as error:
            file.behind = 0
            why = "is a link, which is not followed" if error.errno == ELOOP else error.strerror
            self.problem = self.problem or f"{file.path}: {why}"
            return []

    def _find(self) -> None:
        one = self.run_dir.is_file()
        for path in [self.run_dir] if one else find_journals(self.run_dir)[:_MOST_FILES]:
            self.files.setdefault(path.name, JournalFile(path))


class Watch:
    """Tells when a directory, or a file, grows; silent where the system cannot tell."""

    def __init__(self, path: Path) -> None:
        self._inotify: Inotify | None = None
        with contextlib.suppress(OSError):
            self._inotify = Inotify()
            self._inotify.watch(str(path))

    def fileno(self) -> int | None:
        """Return the descriptor that becomes readable, None if there is none."""
        return self._inotify.fileno() if self._inotify else None

    def drain(self) -> None:
        """Forget what was told so far."""
        if self._inotify:
            self._inotify.drain()

    def close(self) -> None:
        """Release the descriptor."""
        if self._inotify:
            self._inotify.close()
