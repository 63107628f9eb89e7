"""Where the time of a launch went, as stretches on the axis of the job. Pure functions.

What `goodput` calls idle is told apart here: a node without a seat in the round that runs is a
spare.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from undaunted.journal.goodput import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.journal.goodput import Account
    from undaunted.journal.job.launches import Launch

SPARE = "spare"


def stretches(
    launch: Launch, spent: Account, numbers: Sequence[int], begins: Sequence[int]
) -> list[Span]:
    """Return where the time of a launch went, on the axis; ``SPARE`` is a class as well.

    A spare's ``round`` is the one in which it had no seat.

    Args:
        launch: the launch.
        spent: its account.
        numbers: of all rounds of the attempt, ascending.
        begins: when each of them began, on the axis.
    """
    place = {number: index for index, number in enumerate(numbers)}
    found: list[Span] = []
    for number, kind, start, end in spent.spans:
        moved = Span(number, kind, launch.on_axis(start), launch.on_axis(end))
        following = place.get(number, -1) + 1
        seated = following >= len(numbers) or numbers[following] in launch.rounds
        if kind != "idle" or seated:
            found.append(moved)
        else:
            found.extend(_idle(moved, following, numbers, begins))
    return found


def _idle(
    idle: Span, following: int, numbers: Sequence[int], begins: Sequence[int]
) -> Iterator[Span]:
    """Yield the parts of a time in which a round begins, or more, without this node."""
    now = min(idle.end_ns, max(idle.start_ns, begins[following]))
    if now > idle.start_ns:
        yield idle._replace(end_ns=now)
    while now < idle.end_ns:
        index = max(following, bisect_right(begins, now) - 1)
        until = begins[index + 1] if index + 1 < len(begins) else idle.end_ns
        until = min(until, idle.end_ns) if until > now else idle.end_ns
        yield Span(numbers[index], SPARE, now, until)
        now = until
