"""Looks at files and folders below the roots: quick, but a disk may not answer."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from undaunted.attribution.flight.files import rank_of
from undaunted.base.roots import RefusedError

if TYPE_CHECKING:
    from undaunted.base.roots import Roots
    from undaunted.services.results import Log, Stamp

HEAD = 4096  # bytes of a log that are shown
_LOGS = (".log", ".out", ".err", ".txt")


class Seen(NamedTuple):
    """A log as it was looked at: real path, and stamp of the file."""

    path: str
    stamp: Stamp


def look(roots: Roots, path: str) -> Seen:
    """Look at a log.

    Raises:
        RefusedError: it is not to be read, or is empty.
    """
    opened = roots.open(path)
    os.close(opened.fd)
    if not opened.stamp[1]:
        raise RefusedError("empty_file", f"{path} is empty")
    return Seen(opened.path, opened.stamp)


def head(roots: Roots, path: str) -> bytes:
    """Return the beginning of a log.

    Raises:
        RefusedError: it is not to be read.
    """
    opened = roots.open(path)
    try:
        return os.read(opened.fd, HEAD)
    finally:
        os.close(opened.fd)


def others(roots: Roots, folder: str, log: Log) -> list[Seen]:
    """Look at the logs in a folder, oldest first; where the job is known, those of its number.

    Args:
        roots: below which it must be.
        folder: which one.
        log: that names it; it does not count itself.

    Raises:
        RefusedError: the folder is not to be read.
    """
    real, names = roots.names(folder)
    is_of_job = re.compile(rf"(?<!\d){re.escape(log.job)}(?!\d)" if log.job else "").search
    found = []
    for path in (f"{real}/{name}" for name in names if name.endswith(_LOGS)):
        if path != log.path and is_of_job(path):
            with suppress(RefusedError):
                found.append(look(roots, path))
    return sorted(found, key=lambda one: one.stamp)


def dumps(roots: Roots, folder: str) -> str:
    """Return the real path of a folder in which there are dumps of ranks, by their names.

    Raises:
        RefusedError: it is none, or not to be read.
    """
    real, names = roots.names(folder)
    if not any(rank_of(name) >= 0 for name in names):
        raise RefusedError("not_found", f"no name in {real} says a rank, as _dump_3 does")
    return real
