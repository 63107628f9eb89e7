"""Which file system is full: a rank that cannot write says at most that there is no room."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import within

if TYPE_CHECKING:
    from undaunted.attribution.crash import RankFailure
    from undaunted.fault_tolerance.run_config import RunConfig

_DEADLINE_S = 0.1
_FULL_BYTES = 64 * 1024
_MOST_MOUNTS = 1000
_LONGEST_TABLE = 1 << 20
# What Python says, and torch.save, which loses the reason on its way out of C++.
_NO_ROOM = re.compile(
    rf"\[Errno (?:{errno.ENOSPC}|{errno.EDQUOT})\]|No space left on device|Disk quota exceeded"
    r"|enforce fail at inline_container\.cc:\d+\] \. unexpected pos|iostream error"
)
_OCTAL = re.compile(r"\\([0-7]{3})")
_MOUNTS = "/proc/self/mounts"


def hint(config: RunConfig, root: RankFailure) -> str:
    """What to add to a verdict, "" = no disk has to do with it. Bounded, for a disk that hangs.

    Args:
        config: the run.
        root: the rank that failed first.
    """
    said = f"{root.exception}\n{root.traceback}\n{root.last_lines}"
    own = _own_places(config)
    if _NO_ROOM.search(said):
        return within(_DEADLINE_S, lambda: _which(own), "; a disk was full")
    if root.exception or root.died_of is not None:
        return ""
    # It ended, and could perhaps not write why.
    return within(_DEADLINE_S, lambda: "".join(_of_ours(own)), "")


def _own_places(config: RunConfig) -> dict[str, str]:
    places = {"--run-dir": config.run_dir}
    if any([*config.stdout, *config.stderr]):
        places["--log-dir"] = config.log_dir
    return places


def _of_ours(places: dict[str, str]) -> list[str]:
    full = [(option, path) for option, path in places.items() if _is_full(path)]
    return [f"; {path} is full: make room, or choose {option}" for option, path in full]


def _which(own: dict[str, str]) -> str:
    full = [path for path in _mounted() if _is_full(path)]
    if not full:
        return "".join(_of_ours(own)) or "; a disk was full, or a quota used up"
    return f"; no room is left on {', '.join(map(_room, full))}: make room, or write elsewhere"


def _mounted() -> list[str]:
    """Where file systems are mounted that can be written to."""
    try:
        with Path(_MOUNTS).open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_LONGEST_TABLE).splitlines()[:_MOST_MOUNTS]
    except OSError:
        return []
    words = [line.split(" ") for line in lines]
    writable = [each for each in words if len(each) > 3 and "rw" in each[3].split(",")]
    return list(dict.fromkeys(_OCTAL.sub(_character, each[1]) for each in writable))


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def _room(path: str) -> str:
    disk = os.statvfs(path)
    size, free = (blocks * disk.f_frsize / 2**20 for blocks in (disk.f_blocks, disk.f_bavail))
    return f"{path} ({free:.0f} of {size:.0f} MiB free)"


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    no_more_files = bool(disk.f_files) and disk.f_favail == 0
    no_more_blocks = disk.f_bavail * disk.f_frsize < _FULL_BYTES
    return bool(disk.f_blocks) and (no_more_files or no_more_blocks)
