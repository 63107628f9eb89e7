"""Counters of lost links: one that rises makes the node unhealthy, though the link may be back.

A link that was lost has broken the connections over it, which a rank may notice only much later.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.health.check import (
    INFINIBAND,
    Check,
    Finding,
    Settings,
    join,
    nics,
    of_links,
    read_text,
    reason,
    skipped,
)
from undaunted.health.topology import TopologyError, nics_beside_gpus, read_topology

if TYPE_CHECKING:
    from collections.abc import Collection

_MOST_DIGITS = 20  # of a 64-bit number


class NicCounters(Check):
    """All counters of this node, or those of the NICs beside its GPUs."""

    name = "NIC monitor"

    def __init__(self, settings: Settings, only: Collection[str] = ()) -> None:
        """Check the counters that ``settings`` name.

        Args:
            settings: where, and of which NICs.
            only: names of those that count, whatever the settings say; empty = as they say.
        """
        self._settings = settings
        self._only = only
        self.periodic = bool(nics(settings.root))

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps each counter's value at first."""
        present = nics(self._settings.root)
        if not present:
            return skipped("no InfiniBand device")
        watched, problem = self._watched(present)
        notes = [problem] if problem else []
        problems: list[str] = []
        given = self._settings.link_down_path.replace("{dev_name}", "{nic}")
        for link, path in of_links(self._settings.root, watched, "counters/link_downed", given):
            try:
                text = read_text(path)
            except OSError as error:
                notes.append(f"{link}: {path}: {reason(error)}")
                continue
            if not (text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS):
                notes.append(f"{link}: {path} holds {text[:40]!r}, which is no counter")
                continue
            now, at_first = int(text), seen.get(link)
            if not isinstance(at_first, int) or now < at_first:  # reset, by an administrator
                seen[link] = now
            elif now > at_first:
                problems.append(f"{link} has lost its link (link_downed {at_first} -> {now})")
        return join(problems, notes)

    def _watched(self, present: list[str]) -> tuple[list[str], str]:
        """Return the NICs that count, and why those are not the ones asked for."""
        if self._only:
            return [nic for nic in present if nic in self._only], ""
        path = self._settings.pci_topology
        if not path:
            return present, ""
        try:
            beside = nics_beside_gpus(read_topology(path))
        except (OSError, TopologyError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            return present, f"{path}: {why}; all NICs count"
        addresses = {nic: self._address(nic) for nic in present}
        watched = [nic for nic in present if nic in beside or addresses[nic] in beside]
        return (watched, "") if watched else (present, f"{path} has no NIC of here; all count")

    def _address(self, nic: str) -> str:
        """PCI address of a device, "" if it has none."""
        try:
            return Path(self._settings.root, INFINIBAND, nic, "device").readlink().name.lower()
        except OSError:
            return ""


def checks(settings: Settings) -> list[Check]:
    """Return the check if it is asked for."""
    return [NicCounters(settings)] if settings.nic_monitor else []
