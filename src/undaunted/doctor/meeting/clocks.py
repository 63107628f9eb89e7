"""Differences of clocks, from four timestamps as in NTP. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.meeting.messages import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.doctor.meeting.messages import Pong

PINGS = 8


def estimate(pong: Pong, back_ns: int) -> Clock:
    """Return how far the other clock is ahead; ``back_ns``: when the answer came, by one's own.

    The error is half of the time on the way: all of it may have been spent in one direction.
    """
    ahead_ns = ((pong.got_ns - pong.sent_ns) + (pong.answered_ns - back_ns)) // 2
    way_ns = (back_ns - pong.sent_ns) - (pong.answered_ns - pong.got_ns)
    return Clock(ahead_ns, max(0, (way_ns + 1) // 2))


def best(estimates: Sequence[Clock]) -> Clock:
    """Return the estimate with the least error: the one that met the least traffic."""
    return min(estimates, key=lambda clock: clock.error_ns)
