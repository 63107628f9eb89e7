"""A job once more, step by step: what its journals tell, told to the simulator's `Checker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.coordination.invariants import Checker
from simulator.coordination.setup import Setup
from simulator.replay.tables import Table, tables_of, voter
from simulator.replay.values import Findings, Violation
from simulator.run import InvariantError
from simulator.virtual.engine import Simulation
from undaunted.base.text import format_ranks
from undaunted.coordinator.protocol import Ledger
from undaunted.journal.events import (
    AgentPaused,
    ControlRequested,
    Decision,
    EventsLost,
    FailureDetected,
    JobEnded,
    JobStarted,
    NodeChecked,
    RankEvent,
    RankExited,
    RankMilestone,
    RoundBlamed,
    RoundProgress,
    RoundStarted,
    RoundStopped,
    SignalReceived,
    StopRequested,
    WorkersSpawned,
)
from undaunted.journal.query import first

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from simulator.coordination.invariants import Seat
    from undaunted.journal.events import AnyEvent, Event
    from undaunted.journal.job.launches import Attempt, Launch

_NS = 1_000_000_000
# By then everybody has been told to stop, on top of the times a node may go on without a leader.
_GRACE_S = 25.0
_SILENCE_S = 65.0
# Most of all events, about which no invariant says anything.
_OF_NO_MATTER = (RankMilestone, RoundProgress, RankEvent)


@dataclass(frozen=True, slots=True)
class _Job(Setup):
    """A real job: ``silence_s`` is how long a node goes on without a leader at the most."""

    silence_s: float = _SILENCE_S

    @property
    def exact(self) -> bool:
        """Clocks of machines are put together from what passes between them."""
        return False

    @property
    def old_world_s(self) -> float:
        """When a round runs, every node of an older one has been told to stop so long after."""
        return self.silence_s + _GRACE_S


class Replay:
    """One attempt of a job, told to a checker in the order in which things happened."""

    def __init__(
        self, attempt: Attempt, findings: Findings, damaged: Collection[Path] = ()
    ) -> None:
        """Prepare it.

        Args:
            attempt: launches and rounds, on one axis.
            findings: gets what is wrong, and what cannot be known.
            damaged: journals in which lines cannot be read.
        """
        self._damaged = damaged
        self._attempt = attempt
        self._findings = findings
        self._tables: dict[tuple[int, int], Table] = {}  # by launch and number
        self.tables = tables_of(attempt)
        for table in self.tables:
            for launch in table.launches:
                self._tables[launch.index, table.number] = table
        self._simulation = Simulation(0)
        self._setup = _setup(attempt, self.tables)
        self._checker = Checker(self._setup, self._simulation)
        self._now: tuple[Launch, AnyEvent] | None = None
        self._noted: set[tuple[str, str]] = set()
        self._version = 0
        self._begun: set[int] = set()  # of others, the start is in no journal that can be read

    def run(self) -> None:
        """Tell the checker everything; all violations are noted, not only the first."""
        start = self._attempt.began
        steps = [
            (launch.on_axis(event.t) - start, launch, event)
            for launch in self._attempt.launches
            for event in launch.events
            if not isinstance(event, _OF_NO_MATTER) or event is launch.events[-1]
        ]
        steps.sort(key=lambda step: step[0])
        for at_ns, launch, event in steps:
            if isinstance(event, AgentPaused):
                began_ns = at_ns - round(event.seconds * _NS)
                self._simulation.at(began_ns, self._checker.paused, voter(launch))
                self._simulation.at(at_ns + _NS, self._checker.resumed, voter(launch))
            self._simulation.at(at_ns, self._step, (launch, event))
        self._end_what_was_not_told(start)
        until_ns = self._attempt.ended - start + round(2 * self._setup.old_world_s * _NS)
        while self._simulation.now < until_ns:
            try:
                self._simulation.run(until_ns)
            except InvariantError as error:
                self._note(str(error))

    def _end_what_was_not_told(self, start: int) -> None:
        """A round whose end a journal has lost may have ended right after what it tells of it."""
        untold: dict[str, list[int]] = {}
        for launch in self._attempt.launches:
            if launch.path not in self._damaged and first(launch.events, EventsLost) is None:
                continue
            for one in launch.state.ordered():
                if not one.exits and one.first(RoundStopped) is None:
                    at_ns = launch.on_axis(one.last_ns) - start
                    self._simulation.at(at_ns, self._down, (voter(launch), one.number))
                    untold.setdefault(launch.node, []).append(one.number)
        self._findings.unchecked += [
            f"how long round{'s' * (len(rounds) > 1)} {format_ranks(rounds)} ran on {node}: the "
            "journal, which has lost events, tells of no end"
            for node, rounds in untold.items()
        ]

    def _down(self, what: tuple[Seat, int]) -> None:
        self._checker.down(*what)

    def _note(self, text: str) -> None:
        rule, _, seen = text.partition(": ")
        where: list[tuple[Launch, Event]] = [self._now] if self._now is not None else []
        if (rule, seen) not in self._noted:
            self._noted.add((rule, seen))
            self._findings.violations.append(Violation(rule, seen, where))

    def _step(self, what: tuple[Launch, AnyEvent]) -> None:
        self._now = what
        launch, event = what
        checker, seat = self._checker, voter(launch)
        self._troubles(launch, event)
        match event:
            case JobStarted():
                checker.launched(seat)
            case RoundStarted() if (launch.index, event.round) in self._tables:
                self._begin(launch, event)
            case WorkersSpawned() if event.round in self._begun:
                checker.up(seat, event.round)
            case StopRequested():
                checker.stopping(seat, event.round)
            case RankExited() | RoundStopped():
                checker.down(seat, event.round)
            case Decision():
                self._decided(event)
            case JobEnded():
                self._ended(launch, event)
            case _:
                pass
        if event is launch.events[-1] and launch.state.ended is None:
            # Killed, or it runs: its ranks do not outlive it.
            checker.down(seat, max(launch.state.rounds, default=-1))
            checker.gone(seat)

    def _begin(self, launch: Launch, event: RoundStarted) -> None:
        self._begun.add(event.round)
        table = self._tables[launch.index, event.round]
        if table.missing or self._groups_may_go(launch):
            for other in self._attempt.launches:
                self._touch(other.node)
        if launch.state.ended is None and event.round == max(launch.state.rounds):
            # Whenever it was lost in this round: something has happened to it.
            self._checker.touch(
                launch.node, launch.on_axis(launch.state.until_ns) - self._attempt.began
            )
        if not _told_to_stop(launch, event.round):
            self._touch(launch.node)
        about = Ledger(run_id="", epoch=1, round=event.round, table=table.seats)
        self._checker.begin(voter(launch), about)

    def _decided(self, event: Decision) -> None:
        self._version += 1
        used = self._setup.max_restarts - event.restarts_left
        self._checker.budget(
            Ledger(run_id="", version=self._version, round=event.round, restarts_used=used)
        )

    def _ended(self, launch: Launch, event: JobEnded) -> None:
        checker, seat = self._checker, voter(launch)
        asked = launch.node in checker.asked_for_exclusion or not launch.state.rounds
        if event.outcome == "excluded" and not asked:
            self._version += 1
            about = Ledger(run_id="", version=self._version, excluded={launch.node: event.reason})
            checker.gone(seat)
            checker.budget(about)
        elif not event.alone and event.outcome != "excluded":
            checker.ended(seat, event.outcome, event.reason)
        checker.ended_as.setdefault(seat, (event.outcome, event.reason))
        checker.gone(seat)

    def _troubles(self, launch: Launch, event: Event) -> None:
        """What has happened to a node, as far as it is known, is no reason to keep it."""
        match event:
            case RoundBlamed():
                for node in (event.node, *event.victims):
                    self._touch(node)
            case ControlRequested():
                self._checker.asked_for_exclusion.add(launch.node)
                self._touch(launch.node)
            case NodeChecked() if event.problem:
                self._checker.asked_for_exclusion.add(launch.node)
                self._touch(launch.node)
            case SignalReceived():
                self._checker.told_to_leave.add(launch.node)
                self._touch(launch.node)
            case FailureDetected() | AgentPaused() | EventsLost():
                self._touch(launch.node)
            case _:
                pass

    def _touch(self, node: str) -> None:
        self._checker.touch(node, self._simulation.now)

    @staticmethod
    def _groups_may_go(launch: Launch) -> bool:
        """Whether a node may lose its seat with another one's, or that is not known."""
        told = launch.state.job.nodes if launch.state.job is not None else None
        return told is None or told.grouped


def _told_to_stop(launch: Launch, number: int) -> bool:
    """Whether the leader told a node to stop a round; one that is cut off stops by itself."""
    one = launch.state.rounds[number]
    stop, decision = one.time_of(StopRequested), one.time_of(Decision)
    return stop is None or (decision is not None and decision <= stop)


def _setup(attempt: Attempt, tables: list[Table]) -> _Job:
    starts = [one.state.job for one in attempt.launches if one.state.job is not None]
    told = [start.nodes for start in starts if start.nodes is not None]
    complete = not any(table.missing for table in tables)
    return _Job(
        nodes=min((each.least for each in told), default=1) if complete else 1,
        elastic=True,  # the number of rounds is not limited here: which ones are free is not known
        max_restarts=max((start.max_restarts for start in starts), default=0),
        silence_s=max((each.lease_s + each.away_timeout_s for each in told), default=_SILENCE_S),
    )
