"""Links of NICs: one that was active and is not any more makes the node unhealthy.

What a link was at first is kept: ports without a cable are no fault, whatever their number.
"""

from __future__ import annotations

import re
from typing import Any

from undaunted.health.check import (
    Check,
    Finding,
    Settings,
    is_gone,
    join,
    nics,
    of_links,
    read_text,
    reason,
    skipped,
)

# As the kernel writes it: "4: ACTIVE". 5 is a link that is being repaired and has not been lost.
_STATE = re.compile(r"([0-5]): *([A-Z_]+)")
_ACTIVE = ("4", "5")


class NicLink(Check):
    """All links of this node."""

    name = "NIC link"

    def __init__(self, settings: Settings) -> None:
        """Check the links that ``settings`` name."""
        self._settings = settings

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps the links that were active."""
        root, given = self._settings.root, self._settings.link_state_path
        present = nics(root)
        if not present and not seen:
            return skipped("no InfiniBand device")
        problems: list[str] = []
        notes: list[str] = []
        found: set[str] = set()
        for link, path in of_links(root, present, "state", given):
            found.add(link)
            try:
                text = read_text(path)
            except OSError as error:
                lost = link in seen and is_gone(error)
                (problems if lost else notes).append(f"{link}: {path}: {reason(error)}")
                continue
            match = _STATE.fullmatch(text)
            if match is None:
                notes.append(f"{link}: {path} holds {text[:40]!r}, which is no state of a link")
            elif match[1] in _ACTIVE:
                seen[link] = match[2]
            elif link in seen:
                problems.append(f"{link} was {seen[link]} and is {match[2]}")
        problems += [f"{link} was {seen[link]} and is gone" for link in seen if link not in found]
        return join(problems, notes)


def checks(settings: Settings) -> list[Check]:
    """Return the check where links are to be checked and there are any, or were asked for."""
    wanted = settings.nic_link and (settings.link_state_path or nics(settings.root))
    return [NicLink(settings)] if wanted else []
