"""The recovery of a run from a fault, its time, and the steps that it cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.chaos.kinds import KINDS
from undaunted.journal.events import FailureDetected, InProcessPhase
from undaunted.journal.goodput import STARTING
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.chaos.checker.cuts import Cut
    from undaunted.chaos.checker.lives import Life
    from undaunted.chaos.history import History
    from undaunted.journal.events import AnyEvent
    from undaunted.journal.goodput import Times
    from undaunted.journal.job.values import NodePart, Phases
    from undaunted.journal.launch import RoundState

_NS = 1e9
_TOTALS = ("total_ns", "total_to_step_ns")


class RoundAfter(NamedTuple):
    """A round after a fault, and of which launch it is."""

    launch: int
    summary: NodePart
    state: RoundState

    @property
    def stepped_ns(self) -> int | None:
        """Return when the last rank began its first step; None unless all did."""
        return self.state.all_passed("first_step")


@dataclass(frozen=True)
class Recovery:
    """The recovery of a run after a fault.

    Attributes:
        resumed: for each rank, the iteration that it went on with; empty = it did not, or nothing
            was interrupted.
        steps_lost: iterations that had to be done again, None = not known.
        back_s: seconds until every rank stepped again.
        phases: what they were spent on, by class of time, or part of a restart inside processes.
        lost_ranks: ranks that the others went on without.
    """

    resumed: dict[int, int] = field(default_factory=dict)
    steps_lost: int | None = None
    back_s: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    lost_ranks: tuple[int, ...] = ()

    @property
    def resumed_at(self) -> int | None:
        """The lowest iteration that a rank went on with."""
        return min(self.resumed.values(), default=None)


def recovery_of(
    cut: Cut, following: Cut | None, history: History, by_rank: Mapping[int, Sequence[Life]]
) -> Recovery:
    """Say how a run went on after a fault, up to the next one.

    Args:
        cut: the fault.
        following: the next fault of the run that has happened, None = there is none.
        history: of the run.
        by_rank: the lives of its ranks.
    """
    if not cut.interrupted:
        return Recovery()
    resumed = _resumed(cut, following, history, by_rank)
    back_ns, phases = _back(cut, following, history)
    lost = None
    if resumed:
        # An iteration after which ranks stop is complete, one that is interrupted is not.
        to_do = _begun(cut, history, by_rank) + stopped(cut, history)
        lost = max(0, to_do - min(resumed.values()))
    elif resumed := _went_on(cut, by_rank):
        lost = 0
    back_s = None if back_ns is None else back_ns / _NS
    return Recovery(resumed, lost, back_s, phases, _lost_ranks(cut, following, history))


def started_again_ns(cut: Cut, history: History) -> int | None:
    """Return when a launcher that had ended because of the fault was started again; None = never.

    CLOCK_MONOTONIC, nanoseconds.
    """
    return next(
        (
            note.mono_ns
            for note in history.outcome.notes
            if note.fault == cut.fault.id and note.what == "restarted"
        ),
        None,
    )


def stopped(cut: Cut, history: History) -> bool:
    """Return whether the ranks stopped in order because of the fault, and were started again."""
    return KINDS[cut.fault.kind].stops and started_again_ns(cut, history) is not None


def rounds_after(cut: Cut, following: Cut | None, history: History) -> list[RoundAfter]:
    """Return the rounds that began after a fault, up to the one with the next fault."""
    found = []
    for number, launch in enumerate(history.launches):
        for summary in launch.summary.rounds:
            here = (number, summary.round)
            if here > cut.start[:2] and (following is None or here <= following.start[:2]):
                state = launch.state.rounds[summary.round]
                found.append(RoundAfter(number, summary, state))
    return found


def _resumed(
    cut: Cut, following: Cut | None, history: History, by_rank: Mapping[int, Sequence[Life]]
) -> dict[int, int]:
    """Return what the ranks went on with in the first start in which they came to a step."""
    later = sorted(
        {
            life.start
            for lives in by_rank.values()
            for life in lives
            if life.start > cut.start and (following is None or life.start <= following.start)
        }
    )
    for start in reversed(later) if KINDS[cut.fault.kind].poisons else later:
        at = {
            rank: min(iterations)
            for rank, lives in by_rank.items()
            for life in lives
            if life.start == start and life.placed
            # A life may begin with what was before its first step.
            if (iterations := [key.iteration for key in life.keys if key.iteration >= 0])
        }
        if at:
            return at
    if later:
        return {}  # what the journal tells is how many steps were counted
    for after in rounds_after(cut, following, history):
        told = {
            rank: passed.iteration
            for rank, passed in after.state.passed.items()
            if passed.name == "first_step" and passed.iteration is not None
        }
        if told:
            return told
    return {}


def _went_on(cut: Cut, by_rank: Mapping[int, Sequence[Life]]) -> dict[int, int]:
    """Return what ranks went on with that were restarted inside, exactly where they were."""
    if not cut.inside:
        return {}
    at: dict[int, int] = {}
    for rank, lives in by_rank.items():
        steps = [
            key.iteration
            for life in lives
            if life.start == cut.start
            for key in life.keys
            if key.iteration >= cut.iteration
        ]
        if steps:
            at[rank] = min(steps)
    return at


def _begun(cut: Cut, history: History, by_rank: Mapping[int, Sequence[Life]]) -> int:
    """Return the last iteration that any rank had begun when it was interrupted."""
    begun = [
        life.keys[-1].iteration
        for lives in by_rank.values()
        for life in lives
        if life.start == cut.start and life.keys
    ]
    if not begun:
        part = history.part_of(cut.start)
        begun = [part.last_iteration] if part and part.last_iteration is not None else []
    return max([cut.iteration, *begun])


def _back(cut: Cut, following: Cut | None, history: History) -> tuple[int | None, dict[str, float]]:
    """Return how long it took until every rank stepped again, and what that was spent on."""
    inside = _inside(cut, following, history.events_of(cut.start))
    if inside is not None:
        return inside
    after = next(
        (one for one in rounds_after(cut, following, history) if one.stepped_ns is not None), None
    )
    if after is None or after.stepped_ns is None:
        return None, {}
    took = after.stepped_ns - _failed_at(cut, history.events_of(cut.start))
    if KINDS[cut.fault.kind].relaunch or stopped(cut, history):
        return took, _relaunched(cut, history, took, after.summary.times)
    part = history.part_of(cut.start)
    if part is None or part.phases is None:
        return took, {}
    phases, known = _named(part.phases), part.phases.total_to_step_ns
    if known is not None and took > known:  # until the fault made the rank fail, or a limit passed
        phases["detect"] = phases.get("detect", 0.0) + (took - known) / _NS
    return took, phases


def _failed_at(cut: Cut, events: Sequence[AnyEvent]) -> int:
    """Return when a fault made its rank fail: some do so only later, at the next save."""
    failures = [
        failure.t if failure.since_ns is None else failure.since_ns
        for failure in every(events, FailureDetected)
    ]
    if KINDS[cut.fault.kind].certain or not failures:
        return cut.at_ns
    return max(cut.at_ns, min(failures))


def _lost_ranks(cut: Cut, following: Cut | None, history: History) -> tuple[int, ...]:
    events = history.events_of(cut.start)
    until = None if following is None else following.at_ns
    for phase in every(events, InProcessPhase):
        in_time = phase.t >= cut.at_ns and (until is None or phase.t < until)
        if phase.phase == "re-enter" and in_time:
            return tuple(phase.lost)
    return ()


def _named(phases: Phases) -> dict[str, float]:
    values = msgspec.structs.asdict(phases)
    return {
        name.removesuffix("_ns"): value / _NS
        for name, value in values.items()
        if value is not None and name not in _TOTALS
    }


def _inside(
    cut: Cut, following: Cut | None, events: Sequence[AnyEvent]
) -> tuple[int, dict[str, float]] | None:
    """Return the same for a function that was restarted inside its processes."""
    until = None if following is None else following.at_ns
    phases = [
        phase
        for phase in every(events, InProcessPhase)
        if phase.t >= cut.at_ns and (until is None or phase.t < until)
    ]
    detected = next((phase for phase in phases if phase.phase == "detect"), None)
    again = next((phase for phase in phases if phase.phase == "re-enter"), None)
    if detected is None or again is None:
        return None
    named = {"detect": (detected.t - cut.at_ns) / _NS}
    for phase in phases:
        if phase.phase not in ("detect", "re-enter") and phase.epoch == again.epoch:
            named[phase.phase] = phase.took_s
    return again.t - cut.at_ns, named


def _relaunched(cut: Cut, history: History, took: int, start: Times) -> dict[str, float]:
    """Return what it took to stop a launcher, and to start the next one and its ranks."""
    again = started_again_ns(cut, history)
    if again is None or not cut.at_ns <= again <= cut.at_ns + took:
        return {}
    parts = {name: getattr(start, f"{name}_ns") for name in STARTING}
    parts = {name: spent_ns / _NS for name, spent_ns in parts.items() if spent_ns}
    stop = (again - cut.at_ns) / _NS
    return {"stop": stop, "idle": max(0.0, took / _NS - stop - sum(parts.values())), **parts}
