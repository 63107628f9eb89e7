"""What all events of the journal have in common; see `events` for the events, and for the rules."""

from __future__ import annotations

from typing import Annotated

import msgspec

# Bounded, so that no number in a damaged journal is too large to calculate with.
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# What takes ranks one by one must not be led by a damaged line into filling the memory.
Ranks = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Event(
    msgspec.Struct, kw_only=True, tag_field="event", frozen=True, omit_defaults=True, gc=False
):
    """What every event carries.

    Attributes:
        t: CLOCK_MONOTONIC of the node, nanoseconds.
        wall: Unix time, seconds.
        node: name of the node that wrote it.
        round: number of the round, -1 before the first.
    """

    t: Nanoseconds
    wall: Seconds = 0.0
    node: str = ""
    round: int = -1
