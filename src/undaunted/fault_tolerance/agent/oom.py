"""The kernel's count of kills for want of memory: a counter to compare before and after."""

from __future__ import annotations

import re
from pathlib import Path

from undaunted.base.cgroups import own_groups

_ROOT = Path("/")
_COUNT = re.compile(r"^oom_kill (\d{1,18})$", re.MULTILINE)
_MAX_CHARACTERS = 1 << 20


def read(root: Path = _ROOT) -> int | None:
    """Number of processes killed so far, None where the system does not tell. Never raises.

    Counts kills in this process's cgroup and those below it (version 2), in its memory cgroup
    (version 1), else on the whole machine. Only the difference of two readings means anything.

    Args:
        root: where /proc and /sys are.
    """
    for path in (*_counters(root), root / "proc/vmstat"):
        if found := _COUNT.search(_read(path)):
            return int(found[1])
    return None


def _counters(root: Path) -> list[Path]:
    mounted = root / "sys/fs/cgroup"
    paths = []
    for controller, path in own_groups(root).items():
        inside = path.lstrip("/")
        if not controller:
            paths += [mounted / inside / "memory.events", mounted / "memory.events"]
        elif controller == "memory":
            # In a container the path is the host's, but the group is mounted at the top.
            paths += [mounted / "memory" / inside / "memory.oom_control"]
            paths += [mounted / "memory" / "memory.oom_control"]
    return paths


def _read(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_CHARACTERS)
    except (OSError, ValueError):
        return ""
