"""Strikes against this node, across jobs: a file that says when checks of it have failed.

A node that fails a check now and then is given to one job after another, and each loses a round to
it. With so many strikes within a time it is refused before it takes part. The file is this node's;
all launchers on it share it. It has a line of JSON for each strike: whoever has repaired the node
removes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base.directories import make_private
from undaunted.base.text import format_duration

if TYPE_CHECKING:
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


class Known(NamedTuple):
    """The content of a file: all strikes, oldest first, and the number of lines that are none."""

    strikes: list[Strike]
    others: int


def read(path: Path) -> Known:
    """Return what is known; nothing if there is no file yet.

    Raises:
        OSError: the file cannot be read, or the directory is missing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        if path.parent.is_dir():
            return Known([], 0)
        raise OSError(f"there is no directory {path.parent}; the first strike makes it") from None
    try:
        return _known(_content(fd))
    finally:
        os.close(fd)


def add(path: Path, strike: Strike) -> None:
    """Add a strike; of very many the oldest are forgotten. Waits for the disk, and for others.

    What else is in the file is left as it is.

    Raises:
        OSError: the file cannot be written.
    """
    make_private(path.parent)
    fd = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        content = _content(fd)
        strike = strike._replace(reason=strike.reason[:_LONGEST])
        known, others = _known(content)
        if len(known) < _MOST_KEPT or others:
            end = b"" if content.endswith(b"\n") or not content else b"\n"
            _append(fd, end + _line(strike))
        else:
            lines = b"".join(map(_line, [*known, strike][-_MOST_KEPT:]))
            # Over those before: there is room on a full disk, and a kill in between loses none.
            os.ftruncate(fd, os.pwrite(fd, lines, 0))
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


def _append(fd: int, line: bytes) -> None:
    """Write all of a line, or nothing."""
    size = os.fstat(fd).st_size
    if os.pwrite(fd, line, size) < len(line):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _content(fd: int) -> bytes:
    """Return the end of a file, beginning with a line."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is no file")
    before = status.st_size - _MOST_BYTES
    if before <= 0:
        return os.pread(fd, _MOST_BYTES, 0)
    return os.pread(fd, _MOST_BYTES, before).partition(b"\n")[2]


def _known(content: bytes) -> Known:
    lines = content.splitlines()
    strikes = [each for each in map(_strike, lines) if each is not None]
    return Known(strikes, len(lines) - len(strikes))


def _line(strike: Strike) -> bytes:
    return json.dumps(strike._asdict()).encode("ascii") + b"\n"


def _strike(line: bytes) -> Strike | None:
    try:
        told: Any = json.loads(line)
        return Strike(float(told["time"]), str(told["run_id"]), str(told["reason"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
