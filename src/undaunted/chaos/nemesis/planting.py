"""Makes the newest checkpoint a bad one, in the ways that files allow.

Files are known to belong together by their paths: the largest number in one is taken for its step,
and those that differ in numbers only have the same part. So the parts of other ranks and of older
steps are found in whatever layout a program chooses.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.chaos.kinds import DISK, OTHER_RANK, STALE, TORN, WRONG_STEP
from undaunted.chaos.nemesis.damage import FLIP, TRUNCATE, damage, newest_data

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER = re.compile(r"[0-9]+")


class _Part(NamedTuple):
    path: Path
    pattern: str  # the path without its numbers
    numbers: tuple[int, ...]
    step: int

    def differs(self, other: _Part) -> int:
        """Return in how many numbers beside the step it differs from another of its pattern."""
        pairs = zip(self.numbers, other.numbers, strict=True)
        return sum(a != b and (a, b) != (self.step, other.step) for a, b in pairs)


def plant(directory: Path, how: str) -> str:
    """Make the newest checkpoint below a directory a bad one; times of files stay.

    Args:
        directory: where the checkpoints are.
        how: ``disk`` (a byte is changed), ``torn`` (the second half of a file is missing),
            ``other-rank`` (a file has the content of another rank's), ``stale`` (a file has that of
            an older checkpoint), ``wrong-step`` (all have).

    Returns:
        What was done to which file, "" if there is none, or none to take the content from.

    Raises:
        OSError: a file cannot be changed.
    """
    newest = newest_data(directory)
    if newest is None:
        return ""
    if how in (DISK, TORN):
        done = damage(newest, FLIP if how == DISK else TRUNCATE)
        return f"{newest.relative_to(directory)}: {done}"
    parts = [*_parts(directory)]
    bad = next(part for part in parts if part.path == newest)
    alike = [part for part in parts if part.pattern == bad.pattern and part != bad]
    if how == OTHER_RANK:
        sources = {bad: [part for part in alike if part.step == bad.step]}
    elif how == STALE:
        sources = {bad: _older(bad, parts)}
    else:
        assert how == WRONG_STEP, how
        sources = {one: _older(one, parts) for one in parts if one.step == bad.step}
    if not sources[bad]:
        return ""
    taken = {one.path: _replace(one, found[0]) for one, found in sources.items() if found}
    beside = f", and {len(taken) - 1} files beside it" if len(taken) > 1 else ""
    return f"{newest.relative_to(directory)}: as {taken[newest].relative_to(directory)}{beside}"


def _older(one: _Part, parts: list[_Part]) -> list[_Part]:
    """Return the same part of older checkpoints, the newest first."""
    alike = [p for p in parts if p.pattern == one.pattern and p.step < one.step]
    return sorted(alike, key=lambda part: (part.differs(one), -part.step))


def _replace(one: _Part, other: _Part) -> Path:
    """Give a file the content of another."""
    times = one.path.stat()
    shutil.copyfile(other.path, one.path, follow_symlinks=False)
    os.utime(one.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return other.path


def _parts(directory: Path) -> Iterator[_Part]:
    for place, names, files in os.walk(directory):
        names.sort()
        for name in sorted(files):
            path = Path(place, name)
            text = str(path.relative_to(directory))
            numbers = tuple(map(int, _NUMBER.findall(text)))
            if numbers and path.is_file() and not path.is_symlink():
                yield _Part(path, _NUMBER.sub("#", text), numbers, max(numbers))
