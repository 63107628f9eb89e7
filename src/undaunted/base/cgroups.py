"""Control groups of Linux, versions 1 and 2: those that this process is in, and their limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_DEEPEST = 32
_MOST_BYTES = 1 << 16


def own_groups(root: Path = _ROOT) -> dict[str, str]:
    """Return the paths of our groups by controller; version 2 has the controller "".

    Args:
        root: of the file system; another one in tests. Where it does not tell, there are none.
    """
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    paths = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            for controller in parts[1].split(","):
                paths[controller] = parts[2]
    return paths


def own_directories(controller: str, root: Path = _ROOT) -> list[Path]:
    """Return the directories of our group of a controller and of those above it, ours first.

    Where our group is not shown, as in a container, that of the mount stands for it.

    Args:
        controller: of version 1; "" = version 2.
        root: of the file system.
    """
    path = own_groups(root).get(controller)
    if path is None:
        return []
    mounts = root / "sys/fs/cgroup"
    unified = mounts / "unified" if (mounts / "unified").is_dir() else mounts
    mount = mounts / controller if controller else unified
    parts = [part for part in path.split("/") if part not in {"", ".", ".."}][:_DEEPEST]
    groups = [mount.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
    return [group for group in groups if group.is_dir()]


def cpu_quota(root: Path = _ROOT) -> int | None:
    """Return how many CPUs' time all our groups allow, rounded up; None = there is no limit."""
    return min((quota for quota, _ in cpu_use(root)), default=None)


def cpu_use(root: Path = _ROOT) -> list[tuple[int, float]]:
    """Return of each of our groups with a limit how many CPUs it allows, and seconds used."""
    found = [
        (_quota(_words(group / "cpu.max")), (keyed(group / "cpu.stat", "usage_usec") or 0) / 1e6)
        for group in own_directories("", root)
    ]
    for group in own_directories("cpu", root):
        words = [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        used = _text(group / "cpuacct.usage").strip()
        found.append((_quota(words), int(used) / 1e9 if used.isdecimal() else 0.0))
    return [(quota, used_s) for quota, used_s in found if quota is not None]


def usable_cpus(root: Path = _ROOT) -> int:
    """Return how many CPUs' time this process may use: by its affinity and its groups."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return allowed if quota is None else min(allowed, quota)


def _quota(words: list[str]) -> int | None:
    """Read a limit and its period; "max" and -1 are none."""
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    quota, period = map(int, words)
    return max(1, -(-quota // period)) if period else None


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


class MemoryLimit(NamedTuple):
    """The memory that a group may use, in bytes.

    Attributes:
        most: its limit.
        used: of that, without file caches, which can be given up; None = not known.
        kills: processes that the kernel has killed for want of memory; None = not known.
    """

    most: int
    used: int | None
    kills: int | None

    @property
    def left(self) -> int:
        """The memory that may still be used."""
        return max(0, self.most - (self.used or 0))


def memory_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """Return the limit that leaves least, of our group and of those above it; None = there is none.

    Args:
        root: see `own_groups`.
    """
    found = [
        limit
        for controller, names in (("", _V2), ("memory", _V1))
        for group in own_directories(controller, root)
        if (limit := _limit(group, names)) is not None
    ]
    return min(found, key=lambda limit: (limit.used is None, limit.left), default=None)


def memory_left(root: Path = _ROOT) -> int | None:
    """Return how many bytes the limits of our groups leave, None where there is no limit.

    What can be given up counts as left: file caches, and what swap has room for.

    Args:
        root: see `own_groups`.
    """
    limit = memory_limit(root)
    swap = keyed(root / "proc/meminfo", "SwapFree:", 1024) or 0
    return None if limit is None or limit.used is None else limit.left + swap


def keyed(path: Path, key: str, unit: int = 1) -> int | None:
    """Return the number behind a word at the beginning of a line, None if there is none."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == key and words[1].isdecimal():
            return int(words[1]) * unit
    return None


class _Names(NamedTuple):
    """The names of the files of one version."""

    most: str
    now: str
    events: str
    prefix: str  # version 1 has the numbers of a group, and with those below


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_")
_V2 = _Names("memory.max", "memory.current", "memory.events", "")
_CACHES = ("inactive_file", "active_file")
_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63
_MOST_DIGITS = 20


def _limit(group: Path, names: _Names) -> MemoryLimit | None:
    most, used = _number(group / names.most), _number(group / names.now)
    if most is None or most >= _UNLIMITED:
        return None
    if used is not None:
        stat = group / "memory.stat"
        used -= sum(keyed(stat, names.prefix + cache) or 0 for cache in _CACHES)
        used = max(0, used)
    return MemoryLimit(most, used, keyed(group / names.events, "oom_kill"))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
