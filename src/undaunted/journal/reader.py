"""Finds journals and reads them, also damaged ones and those of newer builds."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, get_args

import msgspec

from undaunted.journal.events import AnyEvent, JournalOpened
from undaunted.journal.lines import MAX_LINE, decode, decode_lines

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


# Bytes that are decoded at once, where no line of them is damaged; not more than a line may have.
_BLOCK = MAX_LINE
# How many problems are kept one by one; all are counted.
_MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that gave no event. ``line`` counts from 1."""

    line: int
    reason: str


@dataclass(slots=True)
class Journal:
    """The content of one file.

    Attributes:
        path: the file.
        events: the events, in the order of their lines.
        problems: the first lines that could not be read, at most 100.
        unreadable: how many lines could not be read.
        unknown: how many lines hold an event of a kind this build does not know.
    """

    path: Path
    events: list[AnyEvent] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unreadable: int = 0
    unknown: int = 0

    def launches(self) -> list[list[AnyEvent]]:
        """Return the events of each launch that wrote to this file, oldest first."""
        opened = [(i, event) for i, event in enumerate(self.events) if type(event) is JournalOpened]
        starts: list[int] = []
        writer: tuple[str, int, int] | None = None
        for index, event in opened:
            # The same writer opens again when its file had been deleted.
            if event.writer != writer:
                writer = event.writer
                starts.append(index)
        if self.events and 0 not in starts:
            starts.insert(0, 0)  # the first line is missing
        return [self.events[start:end] for start, end in pairwise([*starts, len(self.events)])]


class _Kind(msgspec.Struct):
    """The least a line of a newer build has in common with ours."""

    event: str


def find_journals(run_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the journals of all nodes in a run directory, sorted by name.

    Raises:
        OSError: the directory cannot be read.
    """
    names = (path for path in Path(run_dir).iterdir() if path.match("journal-*.jsonl"))
    return sorted(path for path in names if path.is_file())


def read_journal(path: str | os.PathLike[str]) -> Journal:
    """Read a journal; lines that cannot be read are skipped and counted.

    Raises:
        OSError: the file cannot be opened or read.
    """
    journal = Journal(Path(path))
    number = 1
    with journal.path.open("rb") as file:
        for block in _blocks(file):
            if _take_all(journal, block):
                number += block.count(b"\n")
                continue
            for line in io.BytesIO(block):
                if len(line) > MAX_LINE:
                    _note(journal, number, f"longer than {MAX_LINE} bytes")
                elif line.strip():
                    take_line(journal, number, line)
                number += 1
    return journal


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, many at once; of a line that is too long only the beginning."""
    while block := file.read(_BLOCK):
        if not block.endswith(b"\n"):
            rest = file.readline(MAX_LINE + 1)
            block += rest
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE)  # of no use
        yield block


def _take_all(journal: Journal, block: bytes) -> bool:
    """Add the events of some lines; False, and nothing added, if one of them needs a look."""
    if len(block) - block.rfind(b"\n", 0, -1) > MAX_LINE:  # the last line; others are shorter
        return False
    try:
        journal.events += decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def take_line(journal: Journal, number: int, line: bytes) -> None:
    """Add what line ``number`` holds, an event or a problem."""
    try:
        journal.events.append(decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _is_unknown_event(line, error):
            journal.unknown += 1
        elif not line.endswith(b"\n"):
            _note(journal, number, "cut off, the writer died or the disk was full")
        else:
            _note(journal, number, str(error))


def _is_unknown_event(line: bytes, error: Exception) -> bool:
    if not isinstance(error, msgspec.ValidationError):
        return False  # not even JSON
    try:
        kind = msgspec.json.decode(line, type=_Kind).event
    except msgspec.DecodeError:
        return False
    return kind not in _KNOWN


def _note(journal: Journal, line: int, reason: str) -> None:
    journal.unreadable += 1
    if len(journal.problems) < _MAX_PROBLEMS:
        journal.problems.append(Problem(line, reason))


_KNOWN = frozenset(kind.__struct_config__.tag for kind in get_args(AnyEvent))


DEFAULT_RUNS = Path("undaunted-runs")


def newest_run(runs: Path = DEFAULT_RUNS) -> Path | None:
    """Return the directory below ``runs`` whose journal was written last, None if there is none."""
    newest: tuple[int, Path] | None = None
    for run in _directories(runs):
        for written_ns in _times(run):
            if newest is None or written_ns > newest[0]:
                newest = (written_ns, run)
    return None if newest is None else newest[1]


def _directories(runs: Path) -> list[Path]:
    try:
        return [run for run in runs.iterdir() if run.is_dir() and not run.is_symlink()]
    except OSError:
        return []


def _times(run: Path) -> list[int]:
    try:
        return [journal.stat().st_mtime_ns for journal in find_journals(run)]
    except OSError:
        return []  # of somebody else, or just removed
