"""Control groups, versions 1 and 2: the tightest limits on the way from this process up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.cgroups import UNLIMITED, keyed, own_directories
from undaunted.doctor.facts import Cgroup
from undaunted.doctor.probe.kernel import ROOT, read_text

if TYPE_CHECKING:
    from pathlib import Path


class _Names(NamedTuple):
    """What the files of one version are called."""

    most: str
    now: str
    inactive: str
    events: str


_V1 = _Names(
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"
)
_V2 = _Names("memory.max", "memory.current", "inactive_file", "memory.events")


def of_cgroup(root: Path = ROOT) -> Cgroup:
    """Return the limits, None for what is not limited or cannot be read."""
    found: dict[str, int | None] = {}
    for names, controller in ((_V2, ""), (_V1, "memory")):
        found |= _memory(own_directories(controller, root), names)
    for controller in ("", "pids"):
        found |= _pids(own_directories(controller, root))
    return Cgroup(**found)


def _memory(groups: list[Path], names: _Names) -> dict[str, int | None]:
    """Return the limit of the tightest group, and what goes with it."""
    limited = [
        (most, group)
        for group in groups
        if (most := _number(group / names.most)) is not None and most < UNLIMITED
    ]
    if not limited:
        return {}
    most, group = min(limited, key=lambda pair: pair[0])
    now = _number(group / names.now)
    if now is not None:
        # What files have left in the cache is given up when memory is needed.
        now = max(0, now - (keyed(group / "memory.stat", names.inactive) or 0))
    kills = keyed(group / names.events, "oom_kill")
    return {"memory_max": most, "memory_now": now, "oom_kills": kills}


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
