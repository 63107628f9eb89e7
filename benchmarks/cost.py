"""What a launcher's own processes use while the ranks train, read from /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.process import descendants

if TYPE_CHECKING:
    from collections.abc import Iterable

TEMPLATE = b"worker/boot.py\0template\0"  # in the command line of a warm template


@dataclass(frozen=True)
class Usage:
    """Totals since the start of the processes, and the memory they hold now."""

    cpu_ns: int
    wake_ups: int
    pss_bytes: int


def launcher_processes(launcher: int, ranks: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return the pids that belong to the launcher: those that always run, and warm templates."""
    excluded = set()
    for rank in ranks:
        excluded.update([rank, *descendants(rank)])
    own = [launcher, *(pid for pid in descendants(launcher) if pid not in excluded)]
    templates = [pid for pid in own if TEMPLATE in Path(f"/proc/{pid}/cmdline").read_bytes()]
    passing = {child for pid in templates for child in descendants(pid)}  # tries imports, and ends
    own = [pid for pid in own if pid not in {*templates, *passing}]
    return own, [pid for pid in templates if pid not in passing]


def usage(pids: Iterable[int]) -> Usage:
    """Add up what ``pids`` have used; all of them must be alive."""
    found = [usage_of(Path(f"/proc/{pid}")) for pid in pids]
    return Usage(
        sum(one.cpu_ns for one in found),
        sum(one.wake_ups for one in found),
        sum(one.pss_bytes for one in found),
    )


def usage_of(process: Path) -> Usage:
    threads = list((process / "task").iterdir())
    return Usage(
        cpu_ns=sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads),
        wake_ups=sum(field(thread / "status", "voluntary_ctxt_switches") for thread in threads),
        pss_bytes=field(process / "smaps_rollup", "Pss") * 1024,
    )


def field(path: Path, name: str) -> int:
    """Return the number of the line ``NAME:  NUMBER ...`` of a file of /proc."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise ValueError(f"{path} has no line {name}")
