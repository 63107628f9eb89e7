"""Where the time of a launch went, as stretches on the axis of the job. Pure functions.

What `goodput` calls idle is told apart here: a node without a seat in the round that runs is a
spare. Once that round has stopped, who gets a seat in the next one is idle like the others.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from undaunted.journal.goodput import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.journal.goodput import Account
    from undaunted.journal.job.launches import Launch

SPARE = "spare"


class Course(NamedTuple):
    """The rounds of an attempt, ascending; when each began and had stopped, on the axis."""

    numbers: list[int]
    begins: list[int]
    stops: list[int]


def stretches(launch: Launch, spent: Account, course: Course) -> list[Span]:
    """Return where the time of a launch went, on the axis; ``SPARE`` is a class as well.

    The ``round`` of a node without a seat is the one that ran last.

    Args:
        launch: the launch.
        spent: its account.
        course: of the attempt.
    """
    place = {number: index for index, number in enumerate(course.numbers)}
    found: list[Span] = []
    for number, kind, start, end in spent.spans:
        moved = Span(number, kind, launch.on_axis(start), launch.on_axis(end))
        following = place.get(number, -1) + 1
        seated = following >= len(course.numbers) or course.numbers[following] in launch.rounds
        if kind != "idle" or seated:
            found.append(moved)
        else:
            found.extend(_idle(moved, following, launch, course))
    return found


def _idle(idle: Span, following: int, launch: Launch, course: Course) -> Iterator[Span]:
    """Yield the parts of a time in which a round begins, or more, without this node."""
    now = min(idle.end_ns, max(idle.start_ns, course.begins[following]))
    if now > idle.start_ns:
        yield idle._replace(end_ns=now)
    while now < idle.end_ns:
        index = max(following, bisect_right(course.begins, now) - 1)
        last = index + 1 == len(course.begins)
        until = idle.end_ns if last else min(course.begins[index + 1], idle.end_ns)
        until = until if until > now else idle.end_ns
        number, stopped = course.numbers[index], until
        if number in launch.rounds:
            stopped = now  # others have begun with it already
        elif not last and course.numbers[index + 1] in launch.rounds:
            stopped = min(max(course.stops[index], now), until)
        if now < stopped:
            yield Span(number, SPARE, now, stopped)
        if stopped < until:
            yield Span(number, "idle", stopped, until)
        now = until
