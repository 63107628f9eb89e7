"""The same events at another time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.journal import events as e

if TYPE_CHECKING:
    from collections.abc import Sequence


def moved(
    events: Sequence[e.AnyEvent], by_ns: int, wall_s: float, **about: object
) -> list[e.AnyEvent]:
    """The same events later, by another process."""
    made = []
    for event in events:
        changed: dict[str, Any] = {"t": event.t + by_ns, "wall": event.wall + wall_s}
        if isinstance(event, e.RankMilestone):
            changed["at_ns"] = event.at_ns + by_ns
        if isinstance(event, e.RoundProgress):
            changed["last_ns"] = event.last_ns + by_ns
        if isinstance(event, e.FailureDetected) and event.since_ns is not None:
            changed["since_ns"] = event.since_ns + by_ns
        if isinstance(event, e.JournalOpened):
            changed |= about
        made.append(msgspec.structs.replace(event, **changed))
    return made
