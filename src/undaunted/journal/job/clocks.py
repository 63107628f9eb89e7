"""Puts the clocks of several machines on one axis, by what must have happened before what. Pure.

Monotonic clocks of machines have nothing in common but that they run at the same rate; wall clocks
may be wrong by hours. But there are moments at which nodes wait for each other, here *meetings*: no
node starts a round before every node of it is ready. So each meeting bounds by how much any two
clocks differ, from both sides: all came before any left.

Taken together these are difference constraints: bounds on the offsets of single clocks are found by
passing bounds on from meeting to meeting until nothing changes. The lowest offsets fulfil all
constraints at once, so do the highest, and so do the midpoints between them, which are taken. The
remaining uncertainty is half the distance.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bounds are passed on as often at most; a few times are enough where most clocks meet. Those that
# still change then contradict each other, and would change for ever.
_MOST_PASSES = 200


class Visit(NamedTuple):
    """A clock's part in a meeting: by its own time it had come at the latest, had left then."""

    clock: int
    came_ns: int
    left_ns: int


Meeting = list[Visit]


class ClockOffset(NamedTuple):
    """The place of a clock: ``offset_ns`` is added to its times; for the rest see `BootClock`."""

    offset_ns: int
    uncertainty_ns: int | None
    method: str
    drifts: bool = False


def place(meetings: Sequence[Meeting], walls: Sequence[int | None]) -> list[ClockOffset]:
    """Put clocks on the axis of that one of them which took part in most meetings.

    Args:
        meetings: of any of the clocks.
        walls: of each clock, by how much wall time is ahead of it, nanoseconds; None = unknown.
            Used only to relate clocks that no chain of meetings relates.

    Returns:
        The place of each clock.
    """
    count = len(walls)
    visits = [0] * count
    for meeting in meetings:
        for visit in meeting:
            visits[visit.clock] += 1
    by_visits = sorted(range(count), key=lambda clock: -visits[clock])
    placed: list[ClockOffset | None] = [None] * count
    for first in by_visits:
        if placed[first] is None:
            base = _base(first, by_visits[0], walls)
            for clock, found in _related(meetings, count, first).items():
                uncertainty = found.uncertainty_ns if base.method == "reference" else None
                method = found.method if base.method == "reference" else base.method
                offset = base.offset_ns + found.offset_ns
                placed[clock] = ClockOffset(offset, uncertainty, method, found.drifts)
    return [each for each in placed if each is not None]


def _base(clock: int, reference: int, walls: Sequence[int | None]) -> ClockOffset:
    """Return where the first clock of some that are related to each other is."""
    wall, other = walls[clock], walls[reference]
    if clock == reference:
        return ClockOffset(0, 0, "reference")
    if wall is None or other is None:
        return ClockOffset(0, None, "start")
    return ClockOffset(wall - other, None, "wall")


def _related(meetings: Sequence[Meeting], count: int, first: int) -> dict[int, ClockOffset]:
    """Place all clocks that meetings relate to one of them, which is at 0."""
    bounds = _bounds(meetings, count, first)
    if bounds is None:
        return _roughly(meetings, first)
    places = {
        clock: ClockOffset((low + high) // 2, (high - low + 1) // 2, "order")
        for clock, (low, high) in bounds.items()
    }
    return places | {first: ClockOffset(0, 0, "reference")}


def _bounds(
    meetings: Sequence[Meeting], count: int, first: int
) -> dict[int, tuple[int, int]] | None:
    """Return the lowest and highest offsets; None if the meetings contradict each other."""
    low: list[int | None] = [None] * count
    high: list[int | None] = [None] * count
    low[first] = high[first] = 0
    waiting = list(meetings)
    for _ in range(_MOST_PASSES):
        changed = False
        for meeting in waiting:
            all_came = max((v.came_ns + at for v in meeting if (at := low[v.clock]) is not None),
                           default=None)  # fmt: skip
            one_left = min((v.left_ns + at for v in meeting if (at := high[v.clock]) is not None),
                           default=None)  # fmt: skip
            if all_came is None or one_left is None:
                continue
            for clock, came_ns, left_ns in meeting:
                least, most = low[clock], high[clock]
                if least is None or all_came - left_ns > least:
                    low[clock] = least = all_came - left_ns
                    changed = True
                if most is None or one_left - came_ns < most:
                    high[clock] = most = one_left - came_ns
                    changed = True
                if least > most:
                    return None
        if not changed:
            break
    else:
        return None
    return {
        clock: (least, most)
        for clock, (least, most) in enumerate(zip(low, high, strict=True))
        if least is not None and most is not None
    }


def _roughly(meetings: Sequence[Meeting], first: int) -> dict[int, ClockOffset]:
    """Place clocks that run at different rates: in the middle of what their meetings say."""
    places = {first: ClockOffset(0, 0, "reference")}
    while True:
        said: dict[int, list[tuple[int, int]]] = {}
        for meeting in meetings:
            known = [visit for visit in meeting if visit.clock in places]
            if not known:
                continue
            all_came = max(visit.came_ns + places[visit.clock].offset_ns for visit in known)
            one_left = min(visit.left_ns + places[visit.clock].offset_ns for visit in known)
            for visit in meeting:
                if visit.clock not in places:
                    pair = (all_came - visit.left_ns, one_left - visit.came_ns)
                    said.setdefault(visit.clock, []).append((min(pair), max(pair)))
        if not said:
            return places
        for clock, pairs in said.items():
            offset = round(median((low + high) // 2 for low, high in pairs))
            off = max(max(high - offset, offset - low) for low, high in pairs)
            drifts = max(low for low, _ in pairs) > min(high for _, high in pairs)
            places[clock] = ClockOffset(offset, off, "order", drifts)
