"""Control groups of Linux, versions 1 and 2: those that this process is in, and their CPU limit."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/")
_DEEPEST = 32
_MOST_BYTES = 4096


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
    quotas = [
        *(_quota(_words(group / "cpu.max")) for group in own_directories("", root)),
        *(
            _quota([*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")])
            for group in own_directories("cpu", root)
        ),
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


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
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", "replace").split()
    except OSError:
        return []
