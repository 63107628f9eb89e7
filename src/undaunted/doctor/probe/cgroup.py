"""Control groups, versions 1 and 2: the tightest limits on the way from this process up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.cgroups import memory_limit, own_directories
from undaunted.doctor.facts import Cgroup
from undaunted.doctor.probe.kernel import ROOT, read_text

if TYPE_CHECKING:
    from pathlib import Path


def of_cgroup(root: Path = ROOT) -> Cgroup:
    """Return the limits, None for what is not limited or cannot be read."""
    found: dict[str, int | None] = {}
    if (memory := memory_limit(root)) is not None:
        found = {"memory_max": memory.most, "memory_now": memory.used, "oom_kills": memory.kills}
    for controller in ("", "pids"):
        found |= _pids(own_directories(controller, root))
    return Cgroup(**found)


def _pids(groups: list[Path]) -> dict[str, int | None]:
    limited = [
        (most, group) for group in groups if (most := _number(group / "pids.max")) is not None
    ]
    if not limited:
        return {}
    most, group = min(limited, key=lambda pair: pair[0])
    return {"pids_max": most, "pids_now": _number(group / "pids.current")}


def _number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
