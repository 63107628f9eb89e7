"""Keeps the books of a job: where the rank-time of each launch and each round went. Pure functions.

A launch alone cannot tell: a hang on one node makes the others wait, which they cannot know from
working; and a node that came later does not know which steps were done before. So it is told what
ended each of its rounds, and how far the job had come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.journal.events import RoundProgress
from undaunted.journal.goodput import Account, Outside, Span, Times, account, calls_step
from undaunted.journal.job.failures import Broken, broken
from undaunted.journal.job.spent import SPARE, Course, stretches
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.job.launches import Attempt, Launch, World

# Index of the attempt, number of the round.
Key = tuple[int, int]


@dataclass(slots=True)
class Books:
    """What was found.

    Attributes:
        broken: how rounds failed, of those that did.
        accounts: of each launch, not multiplied by ranks.
        lanes: of each launch, as stretches on the axis.
        times: rank-time by class of each round.
        spare: rank-time without a seat, of each round.
        total: rank-time by class of the job, with what was before the first round.
        stepped: whether any rank called ``undaunted.step``.
    """

    broken: dict[Key, Broken] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    lanes: list[list[Span]] = field(default_factory=list)
    times: dict[Key, Times] = field(default_factory=dict)
    spare: dict[Key, int] = field(default_factory=dict)
    total: Times = field(default_factory=Times)
    stepped: bool = False


def keep_books(launches: Sequence[Launch], attempts: Sequence[Attempt]) -> Books:
    """Return where all rank-time went.

    Args:
        launches: all, by index.
        attempts: the same, placed on the axis.
    """
    books = Books(stepped=any(calls_step(launch.events) for launch in launches))
    outside = _outside(launches, attempts, books)
    for launch in launches:
        spent = account(launch.events, outside[launch.index], stepped=books.stepped)
        books.accounts.append(spent)
        books.lanes.append([])
    for index, attempt in enumerate(attempts):
        course = Course(
            numbers=[world.number for world in attempt.worlds],
            begins=[world.began for world in attempt.worlds],
            stops=[world.stopped for world in attempt.worlds],
        )
        for number in course.numbers:
            books.times[index, number] = Times()
            books.spare[index, number] = 0
        for launch in attempt.launches:
            lane = stretches(launch, books.accounts[launch.index], course)
            books.lanes[launch.index] = lane
            _enter(books, index, launch, lane)
    return books


def _outside(
    launches: Sequence[Launch], attempts: Sequence[Attempt], books: Books
) -> list[dict[int, Outside]]:
    """Return what each launch cannot know of its rounds; notes how rounds failed."""
    outside: list[dict[int, Outside]] = [{} for _ in launches]
    done = 0
    for index, attempt in enumerate(attempts):
        nodes = {launch.node for launch in attempt.launches}
        for place, world in enumerate(attempt.worlds, start=1):
            failed = broken(world, followed=place < len(attempt.worlds), nodes=nodes)
            if failed is not None:
                books.broken[index, world.number] = failed
            for launch in world.launches:
                known = Outside(done) if failed is None else failed.outside(launch, done)
                outside[launch.index][world.number] = known
            done = max(done, _reached(world))
    return outside


def _reached(world: World) -> int:
    """Return the highest iteration begun, 0 if none is known."""
    told = (every(launch.rounds[world.number], RoundProgress) for launch in world.launches)
    return max((one.last_iteration for each in told for one in each), default=0)


def _enter(books: Books, attempt: int, launch: Launch, lane: Sequence[Span]) -> None:
    """Add up what a launch has spent, multiplied by its ranks."""
    for number, kind, start, end in lane:
        key = (attempt, number)
        if kind == SPARE:
            books.spare[key] += (end - start) * launch.slots
            continue
        ranks = launch.ranks.get(number)  # None: it waits for its first or next seat
        spent_ns = (end - start) * (launch.slots if ranks is None else len(ranks))
        name = f"{kind}_ns"
        setattr(books.total, name, getattr(books.total, name) + spent_ns)
        if number >= 0:
            times = books.times[key]
            setattr(times, name, getattr(times, name) + spent_ns)
