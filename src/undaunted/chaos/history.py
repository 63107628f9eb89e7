"""The remains of one run as one value: journals, records of ranks, notes of the nemesis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from undaunted.chaos.outcome import Outcome, read_outcome
from undaunted.digests.record import Record, Records, read_records
from undaunted.journal.events import JobStarted, RankEvent
from undaunted.journal.job.summary import summarize
from undaunted.journal.launch import LaunchState
from undaunted.journal.query import by_round, every, first
from undaunted.journal.reader import find_journals, read_journal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from undaunted.journal.events import AnyEvent
    from undaunted.journal.job.values import LaunchSummary, NodePart

RUN_DIR = "run"
DIGESTS_DIR = "digests"

_FAULT_EVENT = "fault"  # as `faults.trigger` names it


class Start(NamedTuple):
    """A start of the program; later ones are greater.

    Attributes:
        launch: of which launcher, from 0.
        round: in which of its rounds.
        part: which start inside of the process, from 0.
    """

    launch: int
    round: int
    part: int = 0


@dataclass(frozen=True)
class Launch:
    """The journal of one launcher of the run.

    Attributes:
        events: in the order of the journal.
        rounds: the events of each round, by number.
        state: what they tell.
        summary: the same as the report has it.
    """

    events: Sequence[AnyEvent]
    rounds: Mapping[int, Sequence[AnyEvent]]
    state: LaunchState
    summary: LaunchSummary

    @classmethod
    def of(cls, events: Sequence[AnyEvent]) -> Launch:
        """Put the events of one launch in order."""
        state = LaunchState.of(events)
        return cls(events, by_round(events), state, summarize(state))

    def faults(self) -> list[RankEvent]:
        """The planned faults that have happened, as the ranks told of them; id in ``text``."""
        return [e for e in every(self.events, RankEvent) if e.name == _FAULT_EVENT]


@dataclass(frozen=True)
class History:
    """The remains of one run.

    Attributes:
        name: of the run: ``undisturbed``, or its number.
        outcome: how it went, as the nemesis saw it.
        launches: in the order in which they were started.
        records: of each rank's state, by rank, in the order in which they were written.
        unreadable: lines of the records that could not be read.
        problems: what else could not be read, one line each.
    """

    name: str
    outcome: Outcome = field(default_factory=Outcome)
    launches: Sequence[Launch] = ()
    records: Mapping[int, Sequence[Record]] = field(default_factory=dict)
    unreadable: int = 0
    problems: Sequence[str] = ()

    def events_of(self, start: Start) -> Sequence[AnyEvent]:
        """Return the events of the round of a start."""
        return self.launches[start.launch].rounds.get(start.round, ())

    def part_of(self, start: Start) -> NodePart | None:
        """Return the round of a start as the report has it, None = it has none."""
        rounds = self.launches[start.launch].summary.rounds
        return next((part for part in rounds if part.round == start.round), None)


def read_history(directory: Path) -> History:
    """Read what a run left in its directory, as much of it as can be read.

    Args:
        directory: of the run, ``CHAOS_DIR/run-NAME``.
    """
    problems: list[str] = []
    outcome = Outcome()
    records = Records()
    try:
        outcome = read_outcome(directory)
    except (OSError, ValueError) as error:
        problems.append(f"how the run ended is not known: {error}")
    try:
        records = read_records(directory / DIGESTS_DIR)
    except OSError as error:
        problems.append(f"the records of the ranks cannot be read: {error}")
    return History(
        name=directory.name.removeprefix("run-"),
        outcome=outcome,
        launches=_launches(directory / RUN_DIR, problems),
        records=records.by_rank,
        unreadable=records.unreadable,
        problems=problems,
    )


def _launches(run_dir: Path, problems: list[str]) -> list[Launch]:
    launches: list[Launch] = []
    try:
        for path in find_journals(run_dir):
            journal = read_journal(path)
            launches += [Launch.of(events) for events in journal.launches()]
            if journal.unreadable:
                problems.append(f"{journal.unreadable} lines of {path.name} cannot be read")
    except OSError as error:
        problems.append(f"the journal cannot be read: {error}")
    if not launches and not problems:
        problems.append(f"there is no journal in {run_dir}")
    return sorted(launches, key=_started)


def _started(launch: Launch) -> float:
    job = first(launch.events, JobStarted)
    return job.wall if job is not None else 0.0
