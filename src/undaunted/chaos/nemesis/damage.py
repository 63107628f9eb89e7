"""Damages the newest checkpoint, as a disk would that loses bits or the end of a file."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

FLIP, TRUNCATE = "flip", "truncate"
_KINDS = (FLIP, TRUNCATE)
# What is smaller than the largest file beside it by this factor is a note, not the data.
_DATA = 2
_UNFINISHED = (".tmp", ".new", ".part", ".partial")


class _Found(NamedTuple):
    path: Path
    size: int
    changed_ns: int


def damage_newest(directory: Path, seed: int, fault: str) -> str:
    """Damage the newest checkpoint below a directory.

    One byte in the middle of its data is changed, or the second half is cut off; seed and id of the
    fault decide. The file's times stay.

    Returns:
        What was done to which file, "" if there is none.

    Raises:
        OSError: the file cannot be changed.
    """
    found = newest_data(directory)
    if found is None:
        return ""
    return f"{found.relative_to(directory)}: {damage(found, damage_of(seed, fault))}"


def damage(path: Path, kind: str) -> str:
    """Damage a file, whose times stay; return what was done.

    Args:
        path: of it.
        kind: `FLIP` or `TRUNCATE`.

    Raises:
        OSError: it cannot be changed.
    """
    times = path.stat()
    middle = times.st_size // 2
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if kind == TRUNCATE:
            os.ftruncate(fd, middle)
        else:
            (byte,) = os.pread(fd, 1, middle)
            os.pwrite(fd, bytes([byte ^ 0xFF]), middle)
        os.utime(fd, ns=(times.st_atime_ns, times.st_mtime_ns))
    finally:
        os.close(fd)
    return "second half cut off" if kind == TRUNCATE else f"byte {middle} changed"


def damage_of(seed: int, fault: str) -> str:
    """Choose how a fault damages: the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{fault}".encode(), digest_size=2).digest()
    return _KINDS[digest[0] % len(_KINDS)]


def newest_data(directory: Path) -> Path | None:
    """Find the file that holds the data of the newest checkpoint, None if there is none.

    That is the newest file, or what is much larger and lies beside it: a manifest or a marker is
    often written last. Hidden and unfinished files do not count.
    """
    files = _files(directory)
    if not files:
        return None
    newest = max(files, key=_age)
    beside = [file for file in files if file.path.parent == newest.path.parent]
    enough = max(file.size for file in beside) / _DATA
    return max((file for file in beside if file.size >= enough), key=_age).path


def _age(file: _Found) -> tuple[int, int, str]:
    return file.changed_ns, file.size, str(file.path)


def _files(directory: Path) -> list[_Found]:
    found = []
    for place, names, files in os.walk(directory):
        names[:] = [name for name in names if not _unfinished(name)]
        for name in files:
            path = Path(place, name)
            try:
                state = path.lstat()
            except OSError:
                continue  # removed meanwhile
            if stat.S_ISREG(state.st_mode) and state.st_size and not _unfinished(name):
                found.append(_Found(path, state.st_size, state.st_mtime_ns))
    return found


def _unfinished(name: str) -> bool:
    return name.startswith(".") or name.endswith(_UNFINISHED)
