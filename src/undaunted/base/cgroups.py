"""Control groups of Linux, versions 1 and 2: those that this process is in, and their limits."""

from __future__ import annotations

import os
from pathlib import Path

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
        (_quota(_words(group / "cpu.max")), keyed(group / "cpu.stat", "usage_usec") / 1e6)
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


def memory_left(root: Path = _ROOT) -> int | None:
    """Return how many bytes the limits of our groups leave, None where there is no limit.

    What can be given up counts as left: file caches, and what swap has room for.

    Args:
        root: see `own_groups`.
    """
    found = [
        left
        for controller, most, now, prefix in (
            ("", "memory.max", "memory.current", ""),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", _SUM),
        )
        for group in own_directories(controller, root)
        if (left := _left(group / most, group / now, group / "memory.stat", prefix)) is not None
    ]
    return min(found) + keyed(root / "proc/meminfo", "SwapFree:", 1024) if found else None


def keyed(path: Path, key: str, unit: int = 1) -> int:
    """Return the number behind a word at the beginning of a line, 0 if there is none."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == key and words[1].isdecimal():
            return int(words[1]) * unit
    return 0


_SUM = "total_"  # version 1 has the numbers of a group, and with those below
_CACHES = ("inactive_file", "active_file")
_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63


def _left(most: Path, now: Path, stat: Path, prefix: str) -> int | None:
    limit, used = _text(most).strip(), _text(now).strip()
    if not limit.isdecimal() or not used.isdecimal() or int(limit) >= _UNLIMITED:
        return None
    caches = sum(keyed(stat, f"{prefix}{cache}") for cache in _CACHES)
    return max(0, int(limit) - max(0, int(used) - caches))
