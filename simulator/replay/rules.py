"""Invariants of a real job that the simulator's `Checker` does not know. Pure functions.

In the simulator one clock tells what was first. Here each node has its own: what happened on two
nodes is only said to be wrong if it is so for every time the clocks may have shown.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from simulator.replay.values import (
    ASCENDING,
    BUDGET,
    ONE_PLACE,
    OVER,
    TWO_WORLDS,
    Violation,
)
from undaunted.journal.events import (
    Decision,
    FailureDetected,
    RoundStarted,
    SignalReceived,
    StopRequested,
    WorkersSpawned,
)
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulator.replay.tables import Table
    from undaunted.journal.events import Event
    from undaunted.journal.job.clocks import ClockOffset
    from undaunted.journal.job.launches import Attempt, Launch


class _Life(NamedTuple):
    """From when to when all ranks of a round ran, at the least; ``launch`` is one of its nodes."""

    began_ns: int
    ended_ns: int
    attempt: Attempt
    launch: Launch
    start: RoundStarted


# Ends of launchers that hold for the whole job.
_FOR_ALL = ("finished", "failed", "no_restart", "too_few_nodes")


def rules(
    attempt: Attempt, tables: Sequence[Table], places: Sequence[ClockOffset]
) -> Iterator[Violation]:
    """Yield what is wrong in one attempt.

    Args:
        attempt: launches, on one axis.
        tables: of its rounds.
        places: of the clocks.
    """
    yield from _ranks(tables)
    for launch in attempt.launches:
        yield from _ascend(launch)
    yield from _ascend_together(tables, places)
    yield from _over(attempt, places)
    yield from _restarts_count(attempt)


def two_at_once(attempts: Sequence[Attempt], places: Sequence[ClockOffset]) -> Iterator[Violation]:
    """Yield rounds of different attempts whose ranks ran at the same time."""
    lives = [life for attempt in attempts for life in _lives(attempt, places)]
    lives.sort(key=lambda life: life.began_ns)
    for one, other in pairwise(lives):
        apart = one.attempt is other.attempt or other.began_ns >= one.ended_ns
        if not apart and _same_job(one.launch, other.launch):
            text = (
                f"all ranks of round {one.start.round} on {one.launch.node} and others run, and "
                f"all of round {other.start.round} of another launch on {other.launch.node} and "
                "others"
            )
            seen: list[tuple[Launch, Event]] = [(each.launch, each.start) for each in (one, other)]
            yield Violation(TWO_WORLDS, text, seen)


def _same_job(one: Launch, other: Launch) -> bool:
    if one.state.job is None or other.state.job is None:
        return False
    return one.state.job.run_id == other.state.job.run_id


def _ranks(tables: Sequence[Table]) -> Iterator[Violation]:
    """A node has ranks that follow each other, and that the round has."""
    for table in tables:
        size = sum(seat.slots for seat in table.seats)
        for launch in table.launches:
            ranks = launch.ranks(table.number)
            start = _start(launch, table.number)
            if not ranks or ranks != list(range(ranks[0], ranks[0] + len(ranks))):
                text = f"{launch.node} has ranks {ranks} in round {table.number}"
                yield Violation(ONE_PLACE, text, [(launch, start)])
            elif ranks[-1] >= start.world_size:
                text = (
                    f"{launch.node} has rank {ranks[-1]} in round {table.number}, which has "
                    f"{start.world_size} of {size}"
                )
                yield Violation(ONE_PLACE, text, [(launch, start)])


def _ascend(launch: Launch) -> Iterator[Violation]:
    last: RoundStarted | None = None
    for start in every(launch.events, RoundStarted):
        if last is not None and start.round <= last.round:
            text = f"{launch.node} begins round {start.round} after round {last.round}"
            yield Violation(ASCENDING, text, [(launch, last), (launch, start)])
        last = start


def _ascend_together(tables: Sequence[Table], places: Sequence[ClockOffset]) -> Iterator[Violation]:
    """No node begins with a round when another has begun with a later one."""
    earliest: tuple[int, Launch, RoundStarted] | None = None  # of the later rounds
    for table in sorted(tables, key=lambda each: -each.number):
        starts = [(launch, _start(launch, table.number)) for launch in table.launches]
        for launch, start in starts:
            surely = launch.on_axis(start.t) - _unsure(launch, places)
            if earliest is not None and earliest[2].round > start.round and surely > earliest[0]:
                text = (
                    f"{launch.node} begins round {start.round} when {earliest[1].node} has begun "
                    f"round {earliest[2].round}"
                )
                yield Violation(ASCENDING, text, [(earliest[1], earliest[2]), (launch, start)])
        for launch, start in starts:
            at_most = launch.on_axis(start.t) + _unsure(launch, places)
            if earliest is None or at_most < earliest[0]:
                earliest = (at_most, launch, start)


def _over(attempt: Attempt, places: Sequence[ClockOffset]) -> Iterator[Violation]:
    """After the end of the job no round begins."""
    ends = [
        (launch.on_axis(end.t) + _unsure(launch, places), launch, end)
        for launch in attempt.launches
        if (end := launch.state.ended) is not None and end.outcome in _FOR_ALL and not end.alone
    ]
    if not ends:
        return
    over_ns, told, end = min(ends, key=lambda each: each[0])
    for launch in attempt.launches:
        for start in every(launch.events, RoundStarted):
            if launch.on_axis(start.t) - _unsure(launch, places) > over_ns:
                text = f"{launch.node} begins round {start.round} after {told.node} was told: "
                yield Violation(OVER, text + end.outcome, [(told, end), (launch, start)])


def _restarts_count(attempt: Attempt) -> Iterator[Violation]:
    """Each failure that is followed by a restart uses one; none is ever given back."""
    jobs = [one.state.job for one in attempt.launches if one.state.job is not None]
    if any(job.nodes is not None and job.nodes.elastic for job in jobs):
        return
    left: int | None = None
    for number in sorted({one for launch in attempt.launches for one in launch.state.rounds}):
        told = _last_decision(attempt, number)
        if told is None:
            left = None  # what was left after it is not known
            continue
        decision = told[1]
        if left is not None and decision.restarts_left > left:
            text = f"{left} restarts were left, and {decision.restarts_left} after round {number}"
            yield Violation(BUDGET, text, [told])
        counts = decision.action == "restart" and _failed_by_itself(attempt, number)
        if left is not None and counts and decision.restarts_left == left:
            text = f"the restart after round {number}, which failed, was not counted: {left} left"
            yield Violation(BUDGET, text, [told])
        left = decision.restarts_left


def _last_decision(attempt: Attempt, number: int) -> tuple[Launch, Decision] | None:
    """Return the decision that held in the end, which is that of the node that was told last."""
    told = [
        (launch, decisions[-1])
        for launch in attempt.launches
        if (decisions := [one for one in every(launch.events, Decision) if one.round == number])
    ]
    return min(told, key=lambda each: each[1].restarts_left, default=None)


def _failed_by_itself(attempt: Attempt, number: int) -> bool:
    """Whether a rank failed before anybody was told to stop, and nobody had been told to leave."""
    failed = False
    for launch in attempt.launches:
        one = launch.state.rounds.get(number)
        if one is None:
            continue
        if one.first(SignalReceived) is not None:
            return False
        failed_ns = one.time_of(FailureDetected)
        told = (one.time_of(StopRequested), one.time_of(Decision))
        moments = [moment for moment in told if moment is not None]
        failed |= failed_ns is not None and failed_ns < min(moments, default=0)
    return failed


def _lives(attempt: Attempt, places: Sequence[ClockOffset]) -> Iterator[_Life]:
    """Yield when all ranks of each round ran, where that is known."""
    for world in attempt.worlds:
        known = [
            one for one in world.launches if places[one.clock].method in ("reference", "order")
        ]
        if not known or len(known) < len(world.launches) or len(world.ranks) < world.size:
            continue
        if any(one.state.rounds[world.number].first(RoundStarted) is None for one in known):
            continue  # that line cannot be read
        began, ended = [], []
        for launch in known:
            one = launch.state.rounds[world.number]
            spawned = one.time_of(WorkersSpawned)
            gone = one.exits[0].t if one.exits else one.time_of(StopRequested)
            if spawned is None or gone is None:
                break
            began.append(launch.on_axis(spawned) + _unsure(launch, places))
            ended.append(launch.on_axis(gone) - _unsure(launch, places))
        else:
            if max(began) < min(ended):
                start = _start(known[0], world.number)
                yield _Life(max(began), min(ended), attempt, known[0], start)


def _start(launch: Launch, number: int) -> RoundStarted:
    start = launch.state.rounds[number].first(RoundStarted)
    assert start is not None
    return start


def _unsure(launch: Launch, places: Sequence[ClockOffset]) -> int:
    """Return by how much the moments of a launch may be wrong on the axis."""
    found = places[launch.clock].uncertainty_ns
    return 1 << 62 if found is None else found
