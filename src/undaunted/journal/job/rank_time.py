"""Gives the rank-time of each launch and round of a job to classes, and a cost. Pure functions.

A launch alone does not know enough. A hang on one node makes the others wait, which looks like
work; and a node that came later does not know which steps were done before. So `account` gets the
end of each round, and how far the job had come.

Time that `goodput` calls idle is divided here: a node without a seat in the round that runs is a
spare. Once that round has stopped, it is open who gets a seat in the next one: that is idle time.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from undaunted.journal.goodput import (
    Account,
    RoundContext,
    Span,
    Times,
    account,
    failure_of,
    spent_in,
    went_on,
    worked_until,
)
from undaunted.journal.job.failures import RoundFailure, failure_of_round
from undaunted.journal.job.values import Cost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.journal.job.launches import Attempt, Launch, World

SPARE = "spare"
"""The class of time of nodes that had no seat."""

_ROUND_OF = attrgetter("round")
_HOUR_NS = 3600 * 1_000_000_000
_PRICE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([^\s0-9.,].*)?", re.ASCII)
_MOST = 1e12

# Index of the attempt, number of the round.
Key = tuple[int, int]


@dataclass(slots=True)
class RankTime:
    """The rank-time of a job.

    Attributes:
        failures: how rounds failed, of those that did.
        worked_until: when work ended in rounds that went on after their first failure.
        accounts: of each launch, not multiplied by ranks.
        lanes: of each launch, as stretches on the axis.
        times: rank-time by class of each round; -1: before the first.
        spare: rank-time without a seat, likewise.
        total: rank-time by class of the job.
        stepped: whether any rank called ``undaunted.step``.
    """

    failures: dict[Key, RoundFailure] = field(default_factory=dict)
    worked_until: dict[Key, int] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    lanes: list[list[Span]] = field(default_factory=list)
    times: dict[Key, Times] = field(default_factory=dict)
    spare: dict[Key, int] = field(default_factory=dict)
    total: Times = field(default_factory=Times)
    stepped: bool = False


def rank_time(launches: Sequence[Launch], attempts: Sequence[Attempt]) -> RankTime:
    """Return where all rank-time went.

    Args:
        launches: all, by index.
        attempts: the same, placed on the axis.
    """
    found = RankTime(stepped=any(launch.state.stepped for launch in launches))
    contexts = _contexts(launches, attempts, found)
    for launch in launches:
        spent = account(launch.state, contexts[launch.index], stepped=found.stepped)
        found.accounts.append(spent)
        found.lanes.append([])
    for index, attempt in enumerate(attempts):
        course = Course(
            numbers=[world.number for world in attempt.worlds],
            begins=[world.began for world in attempt.worlds],
            stops=[world.stopped for world in attempt.worlds],
        )
        for number in (-1, *course.numbers):
            found.times[index, number] = Times()
            found.spare[index, number] = 0
        for launch in attempt.launches:
            lane = stretches(launch, found.accounts[launch.index], course)
            found.lanes[launch.index] = lane
            _enter(found, index, launch, lane)
    for times in found.times.values():
        found.total.add(times)
    return found


def _contexts(
    launches: Sequence[Launch], attempts: Sequence[Attempt], found: RankTime
) -> list[dict[int, RoundContext]]:
    """Return what each launch cannot know of its rounds; notes how rounds failed."""
    contexts: list[dict[int, RoundContext]] = [{} for _ in launches]
    done = 0
    for index, attempt in enumerate(attempts):
        nodes = {launch.node for launch in attempt.launches}
        for world, following in zip(attempt.worlds, [*attempt.worlds[1:], None], strict=False):
            failed = failure_of_round(world, following=following, nodes=nodes)
            if failed is not None:
                found.failures[index, world.number] = failed
            for launch in world.launches:
                known = RoundContext(done) if failed is None else failed.context(launch, done)
                contexts[launch.index][world.number] = known
            if ends := list(_worked_until(world, failed)):
                found.worked_until[index, world.number] = min(ends)
            done = max(done, _reached(world))
    return contexts


def _worked_until(world: World, failed: RoundFailure | None) -> Iterator[int]:
    """Yield when nodes ended their work that had gone on after the first failure, on the axis."""
    if failed is None:
        return
    for launch in world.launches:
        one = launch.state.rounds[world.number]
        broke = failure_of(one, failed.context(launch, 0))
        if broke is not None and went_on(one, broke.noticed_ns):
            yield launch.on_axis(worked_until(one, broke))


def _reached(world: World) -> int:
    """Return the highest iteration begun, 0 if none is known."""
    return max(
        (launch.state.rounds[world.number].last_iteration or 0 for launch in world.launches),
        default=0,
    )


def _enter(found: RankTime, attempt: int, launch: Launch, lane: Sequence[Span]) -> None:
    """Add up what a launch has spent, multiplied by its ranks."""
    for number, spans in groupby(lane, _ROUND_OF):
        spent = spent_in(spans)
        seated = number in launch.state.rounds  # else it waits for its first or next seat
        ranks = len(launch.ranks(number)) if seated else launch.slots
        found.spare[attempt, number] += spent.pop(SPARE, 0) * launch.slots
        found.times[attempt, number].add(Times.of(spent, ranks))


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
    found: list[Span] = []
    offset_ns = launch.offset_ns
    for number, kind, start, end in spent.spans:
        moved = Span(number, kind, start + offset_ns, end + offset_ns)
        following = bisect_right(course.numbers, number)
        seated = (
            following >= len(course.numbers) or course.numbers[following] in launch.state.rounds
        )
        if seated:
            found.append(moved)
            continue
        # The job may go on without a node that is cut off, whatever its ranks do then.
        over = min(max(moved.start_ns, course.begins[following]), moved.end_ns)
        if over > moved.start_ns:
            found.append(moved._replace(end_ns=over))
        found.extend(_without_seat(moved._replace(start_ns=over), following, launch, course))
    return found


def _without_seat(time: Span, following: int, launch: Launch, course: Course) -> Iterator[Span]:
    """Yield the parts of a time after a round has begun without this node, or more of them."""
    now = time.start_ns
    while now < time.end_ns:
        index = max(following, bisect_right(course.begins, now) - 1)
        last = index + 1 == len(course.begins)
        until = time.end_ns if last else min(course.begins[index + 1], time.end_ns)
        until = until if until > now else time.end_ns
        number, stopped = course.numbers[index], until
        if number in launch.state.rounds:
            stopped = now  # others have begun with it already
        elif not last and course.numbers[index + 1] in launch.state.rounds:
            stopped = min(max(course.stops[index], now), until)
        if now < stopped:
            yield Span(number, SPARE, now, stopped)
        if stopped < until:
            yield Span(number, "idle", stopped, until)
        now = until


class Price(NamedTuple):
    """The price of one rank for an hour; ``currency`` is any text."""

    amount: float
    currency: str = ""


def parse_price(text: str) -> Price:
    """Return the price that a user has written: a number, and a currency if they like.

    Raises:
        ValueError: it is not that; the message says what is expected.
    """
    found = _PRICE.fullmatch(text.strip())
    amount = float(found.group(1)) if found else math.inf
    if found is None or amount > _MOST:
        raise ValueError(
            f"{text!r} is no price of one rank for an hour; write a number, and a currency after "
            "it if you like: 2.5 or '2.5 EUR'"
        )
    return Price(amount, found.group(2) or "")


def cost_of(price: Price, times: Times, spare_ns: int) -> Cost:
    """Return what the rank-time of a job costs."""
    spent = {name.removesuffix("_ns"): getattr(times, name) for name in times.__struct_fields__}
    spent["spare"] = spare_ns
    by_class = {name: ns / _HOUR_NS * price.amount for name, ns in spent.items() if ns}
    return Cost(
        price=price.amount,
        currency=price.currency,
        total=sum(by_class.values()),
        productive=by_class.get("productive", 0.0),
        by_class=by_class,
    )
