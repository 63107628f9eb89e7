"""Finds the place of each fault in a run: start of the program and iteration. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from undaunted.chaos.history import Start
from undaunted.journal.events import InProcessPhase, RoundStarted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from undaunted.chaos.checker.lives import Life
    from undaunted.chaos.history import History
    from undaunted.chaos.plan import Planned
    from undaunted.journal.events import AnyEvent, RankEvent


@dataclass(frozen=True, slots=True)
class Cut:
    """The place of a fault.

    Attributes:
        fault: the fault.
        at_ns: when, CLOCK_MONOTONIC.
        start: the start of the program in which it happened.
        iteration: at which iteration of the undisturbed run.
        interrupted: whether the program was started again after it, before the next fault.
        inside: whether that was inside of its processes.
    """

    fault: Planned
    at_ns: int
    start: Start
    iteration: int
    interrupted: bool = False
    inside: bool = False


def cuts(
    history: History, planned: Sequence[Planned], by_rank: Mapping[int, Sequence[Life]]
) -> list[Cut]:
    """Return where each fault fell that has happened, in the order in which they happened.

    Args:
        history: of the run.
        planned: its faults.
        by_rank: the lives of its ranks.
    """
    known = {fault.id: fault for fault in planned}
    happened = [
        (number, event)
        for number, launch in enumerate(history.launches)
        for event in launch.faults()
        if event.text in known
    ]
    found: list[Cut] = []
    for launch, event in sorted(happened, key=lambda one: (one[0], one[1].at_ns)):
        fault = known.pop(event.text, None)
        if fault is not None:
            lives = by_rank.get(fault.rank, ())
            before = max((cut.start for cut in found), default=Start(0, 0))
            restarts = _restarts(history.launches[launch].rounds.get(event.round, ()))
            found.append(
                _cut(fault, event, launch, _candidates(lives, launch, event, restarts, before))
            )
    last = _last_start(history, by_rank)
    ends = [*((cut.start, cut.at_ns) for cut in found[1:]), (last, None)]
    return [
        replace(cut, interrupted=cut.start < end or inside, inside=inside)
        for cut, (end, until) in zip(found, ends, strict=False)
        for inside in (_restarted(cut, until, history),)
    ]


def _restarted(cut: Cut, until: int | None, history: History) -> bool:
    """Whether processes were restarted from inside after a fault, and before ``until``."""
    events = history.events_of(cut.start)
    return any(cut.at_ns <= at and (until is None or at < until) for at in _restarts(events))


def _candidates(
    lives: Sequence[Life], launch: int, event: RankEvent, restarts: Sequence[int], before: Start
) -> list[Life]:
    """Return the lives of the rank in which the fault may have happened, in order.

    Args:
        lives: of the rank.
        launch: the launch in which it happened.
        event: tells of it.
        restarts: when the processes of that round were restarted from inside.
        before: the latest start in which a fault before it happened.
    """
    here = [life for life in lives if life.start[:2] == (launch, event.round) and life.keys]
    if len(here) == len(restarts) + 1:
        return here[sum(at <= event.at_ns for at in restarts) :]
    return [life for life in here if life.start >= before]


def _cut(fault: Planned, event: RankEvent, launch: int, candidates: Sequence[Life]) -> Cut:
    """Find the life of the rank in which it came to the iteration of the fault."""
    for life in candidates:
        # The fault happens before or after the iteration's first record.
        if life.records[-1].iteration >= fault.iteration - 1:
            offset = life.keys[-1].iteration - life.records[-1].iteration
            return Cut(fault, event.at_ns, life.start, fault.iteration + offset)
    start = candidates[-1].start if candidates else Start(launch, event.round)
    return Cut(fault, event.at_ns, start, fault.iteration)


def _restarts(events: Sequence[AnyEvent]) -> list[int]:
    """Return when a function was run again inside its processes."""
    return [e.t for e in events if isinstance(e, InProcessPhase) and e.phase == "re-enter"]


def _last_start(history: History, by_rank: Mapping[int, Sequence[Life]]) -> Start:
    starts = [life.start for lives in by_rank.values() for life in lives]
    starts += [
        Start(number, event.round)
        for number, launch in enumerate(history.launches)
        for event in launch.events
        if isinstance(event, RoundStarted)
    ]
    starts += _inside(history)
    return max(starts, default=Start(0, 0))


def _inside(history: History) -> Iterable[Start]:
    """Yield starts inside of processes, which leave no life where nothing is recorded."""
    for number, launch in enumerate(history.launches):
        for round_, events in launch.rounds.items():
            if restarts := _restarts(events):
                yield Start(number, round_, len(restarts))
