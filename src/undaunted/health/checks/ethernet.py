"""Ethernet links: a card that had a carrier and has none any more makes the node unhealthy.

Only cards that are devices of the machine count, not bridges or the like. A card that never had a
carrier has no cable.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from undaunted.health.check import Check, Finding, Settings, join, read_text, reason, skipped


class Ethernet(Check):
    """All cards of this node."""

    name = "Ethernet"

    def __init__(self, root: str) -> None:
        """Look at the cards below ``root``."""
        self._directory = Path(root, "sys/class/net")

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps the cards that had a carrier."""
        problems: list[str] = []
        notes: list[str] = []
        there: set[str] = set()
        try:
            names = sorted(os.listdir(self._directory))
        except OSError as error:
            return skipped(reason(error))
        for name in names:
            if not (self._directory / name / "device").exists():
                continue
            there.add(name)
            try:
                carrier = _has_carrier(self._directory / name / "carrier")
            except OSError as error:
                notes.append(f"{name}: {reason(error)}")
                continue
            if carrier:
                seen[name] = True
            elif name in seen:
                problems.append(f"{name} had a carrier and has none")
        problems += [f"{name} had a carrier and is gone" for name in seen if name not in there]
        return join(problems, notes)


def _has_carrier(path: Path) -> bool:
    try:
        return read_text(path) == "1"
    except OSError as error:
        if error.errno != errno.EINVAL:  # that is: somebody has taken the card down
            raise
        return False


def checks(settings: Settings) -> list[Check]:
    """Return the check if it was asked for."""
    return [Ethernet(settings.root)] if settings.ethernet else []
