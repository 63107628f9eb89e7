"""Everything a chaos run has found, as one value: what all outputs are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.chaos.checker.values import Judgement  # noqa: TC001 - msgspec looks it up
from undaunted.journal.events import RoundStopped

if TYPE_CHECKING:
    from undaunted.chaos.history import History, Launch

SCHEMA = 2
_NS = 1e9


class Moment(msgspec.Struct, frozen=True):
    """Something that happened in a run, ``seconds`` after its start: a fault or the nemesis.

    ``what`` is ``fault``, or what the nemesis noted.
    """

    seconds: float
    what: str
    fault: str
    text: str = ""


class RoundOf(msgspec.Struct, frozen=True):
    """A round of a run; times in seconds since the start of the run, None = not recorded.

    ``stepping`` is when the last rank began its first step; ``outcome`` and ``cause`` are those of
    the report.
    """

    launch: int
    round: int
    started: float
    stepping: float | None = None
    ended: float | None = None
    outcome: str = ""
    cause: str = ""


class RunOf(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as a timeline.

    Attributes:
        name: ``undisturbed``, or its number.
        seconds: how long it took.
        exit_codes: of its launchers.
        in_time: False = it was ended because its time was up.
        rounds: in order.
        moments: faults and what the nemesis did, in order.
        problems: what could not be read.
    """

    name: str
    seconds: float = 0.0
    exit_codes: list[int] = []
    in_time: bool = True
    rounds: list[RoundOf] = []
    moments: list[Moment] = []
    problems: list[str] = []


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of ``undaunted chaos``.

    Attributes:
        schema: goes up when a key changes its meaning; keys may be added without.
        version: of undaunted.
        argv: the user's program with its arguments.
        world_size: ranks.
        seed: of the plan.
        iterations: first and last iteration of the undisturbed run; None = not known.
        started_wall: Unix time in seconds.
        seconds: how long everything took.
        directory: where the runs lie.
        checkpoint_bytes: size of what the runs have left and was kept.
        interrupted: the user ended it before all runs were done.
        runs: the undisturbed one first.
        verdicts: in the order of the plan.
    """

    schema: int = SCHEMA
    version: str = ""
    argv: list[str] = []
    world_size: int = 0
    seed: int = 0
    iterations: tuple[int, int] | None = None
    started_wall: float = 0.0
    seconds: float = 0.0
    directory: str = ""
    checkpoint_bytes: int = 0
    interrupted: bool = False
    runs: list[RunOf] = []
    verdicts: list[Judgement] = []

    @property
    def red(self) -> bool:
        """Return whether any fault is red."""
        return any(verdict.colour == "red" for verdict in self.verdicts)

    @property
    def judged(self) -> bool:
        """Return whether any fault was judged."""
        return any(verdict.judged for verdict in self.verdicts)


def run_of(history: History) -> RunOf:
    """Return the timeline of a run. Launches of one boot are on one clock; others are not shown."""
    start = _start(history)
    moments = [
        Moment((event.at_ns - start) / _NS, "fault", event.text)
        for launch in history.launches
        for event in launch.faults()
    ]
    moments += [
        Moment((note.mono_ns - start) / _NS, note.what, note.fault, note.text)
        for note in history.outcome.notes
    ]
    return RunOf(
        name=history.name,
        seconds=history.outcome.seconds,
        exit_codes=list(history.outcome.exit_codes),
        in_time=history.outcome.in_time,
        rounds=[
            one
            for number, launch in enumerate(history.launches)
            for one in _rounds(number, launch, start)
        ],
        moments=sorted(moments, key=lambda moment: moment.seconds),
        problems=list(history.problems),
    )


def _start(history: History) -> int:
    return min((launch.events[0].t for launch in history.launches if launch.events), default=0)


def _rounds(number: int, launch: Launch, start: int) -> list[RoundOf]:
    rounds = []
    for summary in launch.summary.rounds:
        one = launch.state.rounds[summary.round]
        stepped, stopped = one.latest("first_step"), one.time_of(RoundStopped)
        rounds.append(
            RoundOf(
                launch=number,
                round=summary.round,
                started=(one.began_ns - start) / _NS,
                stepping=None if stepped is None else (stepped - start) / _NS,
                ended=((one.last_ns if stopped is None else stopped) - start) / _NS,
                outcome=summary.outcome,
                cause=summary.cause,
            )
        )
    return rounds
