"""Figures of the undisturbed run: iterations and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.text import printable
from undaunted.chaos import bounds
from undaunted.chaos.checker.lives import lives, reference_lines
from undaunted.chaos.history import RUN_DIR, Start
from undaunted.chaos.nemesis.conduct import OUTPUT_FILE, WORK_DIR
from undaunted.chaos.places import size_of
from undaunted.fault_tolerance.agent import limit_keeper
from undaunted.fault_tolerance.output.destinations import last_lines
from undaunted.journal.events import RoundProgress, RoundStarted
from undaunted.journal.query import every, first

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.chaos.history import History, Launch

_TAIL = 20  # lines


class NoMeasureError(Exception):
    """The undisturbed run is no measure; the message says why and what to do."""


@dataclass(frozen=True)
class Reference:
    """The undisturbed run, and what follows from it for the others.

    Attributes:
        history: what it left.
        first: its first iteration.
        last: its last one.
        world_size: its ranks.
        limit_s: after so much silence a rank of another run hangs.
        grace_s: how long ranks may take to end when the launcher is to stop.
        left_bytes: size of the files it left in ``{dir}``.
    """

    history: History
    first: int
    last: int
    world_size: int
    limit_s: float
    grace_s: float
    left_bytes: int

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.history.outcome.seconds

    def options(self) -> dict[str, str]:
        """Return the options of ``undaunted run`` that follow, by name."""
        return {
            "ft-rank-heartbeat-timeout": f"{self.limit_s:g}",
            "ft-initial-rank-heartbeat-timeout": f"{bounds.start_limit(self.seconds):g}",
            "ft-max-no-progress-cycles": "0",
            "term-timeout": f"{self.grace_s:g}",
        }


def measure(directory: Path, history: History) -> Reference:
    """Take the measure of the undisturbed run.

    Args:
        directory: of that run.
        history: what it left there.

    Raises:
        NoMeasureError: it failed, took too long, or took no step.
    """
    problem = _problem(history)
    if problem:
        raise NoMeasureError(f"{problem}. {end_of_output(directory)}")
    span = iterations_of(history)
    assert span is not None
    silence_s = bounds.longest_silence(
        entry
        for path in (directory / RUN_DIR).glob("learned-limits-*.json")
        for entry in limit_keeper.read(str(path))[0]
    )
    return Reference(
        history=history,
        first=span[0],
        last=span[1],
        world_size=_world_size(history),
        limit_s=bounds.hang_limit(silence_s),
        grace_s=bounds.grace(silence_s),
        left_bytes=size_of(directory / WORK_DIR),
    )


def end_of_output(directory: Path) -> str:
    """Return the last lines of what a run has printed, for messages."""
    output = directory / OUTPUT_FILE
    tail = "\n".join(f"  {printable(line)}" for line in last_lines(str(output), _TAIL))
    return f"The end of {output}:\n{tail}"


def iterations_of(history: History) -> tuple[int, int] | None:
    """Return the first and the last iteration of a run, None if it took no step."""
    spans = [span for launch in history.launches if (span := _iterations(launch)) is not None]
    if not spans:
        return None
    return min(low for low, _ in spans), max(high for _, high in spans)


def first_iteration(history: History) -> int | None:
    """Return the iteration a run began with, None if it is not known."""
    for launch in history.launches[:1]:
        progress = [e for e in every(launch.events, RoundProgress) if e.round == 0]
        if progress:
            return progress[-1].first_iteration
    return None


def found_iteration(history: History, undisturbed: History) -> int | None:
    """Return the iteration of the undisturbed run that a run began with, None if it is not known.

    Of a program that does not count its steps, which are counted from 0 in every process, its
    parameters tell.
    """
    by_rank = lives(history, reference_lines(undisturbed))
    begun = [
        life.keys[0].iteration
        for found in by_rank.values()
        for life in found[:1]
        if life.start == Start(0, 0) and life.placed and life.records[0].counted
    ]
    return max(begun, default=first_iteration(history))


def _iterations(launch: Launch) -> tuple[int, int] | None:
    progress = every(launch.events, RoundProgress)
    if not progress:
        return None
    low = min(event.first_iteration for event in progress)
    return low, max(event.last_iteration for event in progress)


def _problem(history: History) -> str:
    outcome = history.outcome
    if not outcome.in_time:
        return (
            f"the undisturbed run did not end within {outcome.deadline_s:g} s: let the program "
            "take fewer steps, or raise --deadline"
        )
    if outcome.exit_code != 0:
        return (
            f"the undisturbed run ended with exit code {outcome.exit_code}: the program must work "
            "by itself first"
        )
    if iterations_of(history) is None:
        return (
            "the undisturbed run took no step, so there is no place for a fault: the program "
            "neither calls undaunted.step(i) nor uses an optimizer of torch; call "
            "undaunted.step(i) in its loop"
        )
    return ""


def _world_size(history: History) -> int:
    started = (first(launch.events, RoundStarted) for launch in history.launches)
    return max((event.world_size for event in started if event is not None), default=1)
