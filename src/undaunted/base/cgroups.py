"""Control groups of Linux, versions 1 and 2: those that this process is in."""

from __future__ import annotations

from pathlib import Path


def own_groups(root: Path = Path("/")) -> dict[str, str]:
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


def memory_left(root: Path = Path("/")) -> int | None:
    """Return how many bytes the limits of our groups leave, None where there is no limit.

    What can be given up counts as left: file caches, and what swap has room for.

    Args:
        root: see `own_groups`.
    """
    paths, mounts = own_groups(root), root / "sys/fs/cgroup"
    unified = mounts / "unified" if (mounts / "unified").is_dir() else mounts
    found = [
        left
        for mount, controller, most, now, prefix in (
            (unified, "", "memory.max", "memory.current", ""),
            (mounts / "memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", _SUM),
        )
        for group in _upwards(mount, paths.get(controller))
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


def _upwards(mount: Path, path: str | None) -> list[Path]:
    """Return the group's directory and those above it; only the mount where it is not shown."""
    if path is None:
        return []
    parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
    return [mount.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _left(most: Path, now: Path, stat: Path, prefix: str) -> int | None:
    limit, used = _text(most).strip(), _text(now).strip()
    if not limit.isdecimal() or not used.isdecimal() or int(limit) >= _UNLIMITED:
        return None
    caches = sum(keyed(stat, f"{prefix}{cache}") for cache in _CACHES)
    return max(0, int(limit) - max(0, int(used) - caches))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
