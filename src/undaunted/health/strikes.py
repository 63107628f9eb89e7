"""Strikes against this node, across jobs: a file that says when checks of it have failed.

A node that fails a check now and then is given to one job after another, and each loses a round to
it. With so many strikes within a time it is refused before it takes part. The file is this node's;
all launchers on it share it. It has a line of JSON for each strike: whoever has repaired the node
removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base.directories import make_private
from undaunted.base.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MOST_BYTES = 1 << 20
_MOST_KEPT = 1000
_LONGEST = 300  # characters of a reason
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Strike(NamedTuple):
    """One of them: Unix time, the run, and what was found."""

    time: float
    run_id: str
    reason: str


def read(path: Path) -> list[Strike]:
    """Return all strikes, oldest first; none if there is no file. Lines of others are left out.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    try:
        return list(_strikes(_content(fd)))
    finally:
        os.close(fd)


def add(path: Path, strike: Strike) -> None:
    """Add a strike; of very many the oldest are forgotten. Waits for the disk, and for others.

    Raises:
        OSError: the file cannot be written.
    """
    make_private(path.parent)
    fd = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        known = [*_strikes(_content(fd)), strike._replace(reason=strike.reason[:_LONGEST])]
        data = "".join(json.dumps(each._asdict()) + "\n" for each in known[-_MOST_KEPT:])
        os.ftruncate(fd, 0)
        os.pwrite(fd, data.encode("ascii"), 0)
    finally:
        os.close(fd)


def refusal(strikes: list[Strike], limit: tuple[int, float], now: float) -> str:
    """Say why the node is refused, "" = it is not.

    Args:
        strikes: oldest first.
        limit: so many within so many seconds are too many.
        now: Unix time.
    """
    most, within_s = limit
    recent = [each for each in strikes if now - within_s <= each.time <= now]
    if len(recent) < most:
        return ""
    last = recent[-1]
    return (
        f"{len(recent)} strikes against it within {format_duration(within_s)}, the last one "
        f"{format_duration(now - last.time)} ago in run {last.run_id}: {last.reason}"
    )


def _content(fd: int) -> bytes:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError("it is no file")
    return os.pread(fd, _MOST_BYTES, 0)


def _strikes(content: bytes) -> Iterator[Strike]:
    return filter(None, map(_strike, content.splitlines()))


def _strike(line: bytes) -> Strike | None:
    try:
        told: Any = json.loads(line)
        return Strike(float(told["time"]), str(told["run_id"]), str(told["reason"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
