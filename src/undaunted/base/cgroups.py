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
