"""When a rank has shown progress last. The watching itself is the guard's."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Timestamp:
    """Times of the monotonic clock, seconds.

    Attributes:
        auto: when the main thread's interpreter turned last; None = not yet.
        manual: when the function called `CallWrapper.ping` last; None = not in this iteration.
    """

    auto: float | None = None
    manual: float | None = None
