"""What the pages of a node show at one moment, as far as metrics tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank. Durations are in seconds; None = not known, or not yet.

    Attributes:
        rank: global rank.
        phase: as in ``progress.snapshot.Phase``, in small letters.
        iteration: the one that is under way.
        step_s: how long a step takes, the mean since the first one of the round.
        heartbeat_age_s: since the last one.
        heartbeat_longest_s: the longest time between two in this round.
        sections: of each section that is open, since when.
    """

    rank: int
    phase: str = ""
    iteration: int | None = None
    step_s: float | None = None
    heartbeat_age_s: float | None = None
    heartbeat_longest_s: float | None = None
    sections: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """One node.

    Attributes:
        t: CLOCK_MONOTONIC, nanoseconds.
        ranks: those of this node.
        steps: lowest iteration that a rank has begun with, highest that one has begun, and when
            (CLOCK_MONOTONIC, nanoseconds); None as long as there is none.
        events_lost: events that could not be written into the journal.
        leads: it leads a job of several nodes.
    """

    t: int
    ranks: tuple[RankNow, ...] = ()
    steps: tuple[int, int, int] | None = None
    events_lost: int = 0
    leads: bool = False
