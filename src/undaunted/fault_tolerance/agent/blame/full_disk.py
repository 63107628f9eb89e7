"""Which directory of the run is full: a rank that cannot write says only that there is no room."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.base.deadline import within

if TYPE_CHECKING:
    from undaunted.fault_tolerance.run_config import RunConfig

_DEADLINE_S = 0.1
_FULL_BYTES = 64 * 1024


def hint(config: RunConfig) -> str:
    """What to add to a verdict, "" = there is room. Bounded, for a disk that hangs."""
    places = {"--run-dir": config.run_dir}
    if any([*config.stdout, *config.stderr]):
        places["--log-dir"] = config.log_dir
    nothing: list[str] = []
    full = within(_DEADLINE_S, lambda: [o for o, p in places.items() if _is_full(p)], nothing)
    return "".join(f"; {places[option]} is full: make room, or choose {option}" for option in full)


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    no_more_files = bool(disk.f_files) and disk.f_favail == 0
    return no_more_files or disk.f_bavail * disk.f_frsize < _FULL_BYTES
