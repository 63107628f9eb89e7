"""Launches of a job on its nodes: which belong together, and where they are on one axis. Pure.

A *world* is a round as all its nodes see it: the leader's order to start names the same address,
port and size to all of them. Launches that shared a world belong to one *attempt*; a job that a
scheduler has started again is another attempt, with rounds that are numbered from 0 again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.journal import events as e
from undaunted.journal.job.clocks import ClockOffset, Meeting, Visit, place
from undaunted.journal.launch import LaunchState
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from undaunted.journal.reader import Journal


@dataclass(slots=True, eq=False)
class Launch:
    """One launch on one node.

    Attributes:
        index: place among all launches.
        path: of its journal.
        events: in the order in which they were written.
        state: what they tell.
        clock: by which clock it is timed.
        offset_ns: added to its times to get moments on the axis of the job.
    """

    index: int
    path: Path
    events: Sequence[e.Event]
    state: LaunchState
    clock: int
    offset_ns: int = 0

    def on_axis(self, t: int) -> int:
        """Return a moment of this launch's clock on the axis of the job."""
        return t + self.offset_ns

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.state.node

    @property
    def slots(self) -> int:
        """Return how many ranks it has room for."""
        if self.state.job is not None:
            return self.state.job.nproc_per_node
        return max((len(one.ranks) for one in self.state.rounds.values()), default=0)

    def ranks(self, number: int) -> list[int]:
        """Return the global ranks of this node in a round; none where it had no part in it."""
        one = self.state.rounds.get(number)
        return [] if one is None else one.ranks


@dataclass(slots=True, eq=False)
class World:
    """One round on all its nodes: ``launches`` in the order of their ranks, and all ``ranks``."""

    number: int
    size: int = 0
    launches: list[Launch] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)

    def add(self, launch: Launch) -> None:
        """A node takes part."""
        self.launches.append(launch)
        self.ranks.update(launch.ranks(self.number))

    @property
    def missing(self) -> tuple[range, ...]:
        """Ranks that are in no journal."""
        return gaps(self.size, self.ranks)

    @property
    def began(self) -> int:
        """Return when the first node began with it, on the axis."""
        return min(one.on_axis(one.state.rounds[self.number].began_ns) for one in self.launches)

    @property
    def stopped(self) -> int:
        """Return when the last node that tells had stopped, on the axis; its start if none does."""
        told = ((one, self.stopped_on(one)) for one in self.launches)
        return max((one.on_axis(t) for one, t in told if t is not None), default=self.began)

    def stopped_on(self, launch: Launch) -> int | None:
        """Return when none of its processes was left on a node, by its clock; None = not told."""
        return launch.state.rounds[self.number].time_of(e.RoundStopped)


@dataclass(slots=True, eq=False)
class Attempt:
    """One launch of the job by a user or scheduler: its worlds by number, and all launches."""

    worlds: list[World]
    launches: list[Launch]

    @property
    def began(self) -> int:
        """Return when its first launcher began, on the axis."""
        return min(one.on_axis(one.state.began_ns) for one in self.launches)

    @property
    def ended(self) -> int:
        """The last thing that is known of it, on the axis."""
        return max(one.on_axis(one.state.until_ns) for one in self.launches)


def newest_job(journals: Sequence[Journal]) -> tuple[list[Journal], list[str]]:
    """Return the journals of the job that was launched last, and the names of the other runs.

    What was launched in one directory is one job, whatever its launches are called: journals belong
    together that name a same run. One that names none may be of any job, and is kept.
    """
    jobs: list[tuple[set[str], float]] = []  # names of the runs, when the last one was launched
    names: list[set[str]] = []
    for journal in journals:
        started = every(journal.events, e.JobStarted)
        runs = {one.run_id for one in started}
        names.append(set(runs))
        if not runs:
            continue
        last = max(one.wall for one in started)
        for job in [job for job in jobs if job[0] & runs]:
            jobs.remove(job)
            runs, last = runs | job[0], max(last, job[1])
        jobs.append((runs, last))
    newest, _ = max(jobs, key=lambda job: job[1], default=(set[str](), 0.0))
    kept = [one for one, runs in zip(journals, names, strict=True) if not runs - newest]
    return kept, sorted(set().union(*names) - newest)


def launches_of(journals: Iterable[Journal]) -> list[Launch]:
    """Return all launches, by journal, oldest first.

    Without those of launchers that were refused, or have found no job, unless there are no others:
    they may have used the run directory of one.
    """
    launches: list[Launch] = []
    clocks: dict[str, int] = {}
    for journal in journals:
        for events in journal.launches():
            state = LaunchState.of(events)
            # Without the id of a boot, a launch has its own clock.
            boot = (state.opened.boot_id if state.opened else "") or f"#{len(launches)}"
            clock = clocks.setdefault(boot, len(clocks))
            launches.append(Launch(len(launches), journal.path, events, state, clock))
    known = [one for one in launches if not _found_no_job(one.state)] or launches
    for index, launch in enumerate(known):
        launch.index = index
    return known


def _found_no_job(state: LaunchState) -> bool:
    end = state.ended
    if end is None or not end.alone or state.rounds:
        return False
    return end.outcome in {"failed", "preempted"}  # an unhealthy node was to be part of it


def attempts_of(launches: Sequence[Launch]) -> tuple[list[Attempt], list[ClockOffset]]:
    """Return the attempts in the order in which they began; places the launches on one axis.

    The axis begins with the first launcher.
    """
    worlds = _worlds(launches)
    groups = _groups(launches, worlds)
    attempts = []
    for members in groups:
        indices = {one.index for one in members}
        theirs = [world for world in worlds if world.launches[0].index in indices]
        attempts.append(Attempt(sorted(theirs, key=lambda world: world.number), members))
    places = _place(launches, attempts)
    for launch in launches:
        launch.offset_ns = places[launch.clock].offset_ns
    start = min((one.on_axis(one.state.began_ns) for one in launches), default=0)
    for launch in launches:
        launch.offset_ns -= start
    places = [one._replace(offset_ns=one.offset_ns - start) for one in places]
    attempts = _with_spares(attempts)
    for attempt in attempts:
        _adopt_strays(attempt)
    return sorted(attempts, key=lambda attempt: attempt.began), places


# --- launches -----------------------------------------------------------------------------------


def gaps(size: int, known: Iterable[int]) -> tuple[range, ...]:
    """Return the ranks below ``size`` that are not known, in ranges.

    It takes as long as many are known: journals may name any size.
    """
    ends = [*sorted({rank for rank in known if rank < size}), size]
    begins = [0, *(rank + 1 for rank in ends)]
    return tuple(range(low, high) for low, high in zip(begins, ends, strict=False) if low < high)


# --- worlds and attempts ------------------------------------------------------------------------


def _worlds(launches: Sequence[Launch]) -> list[World]:
    """Return all rounds whose start is recorded, each with all its nodes."""
    by_order: dict[tuple[int, str, int, int], list[World]] = {}
    for launch in sorted(launches, key=lambda one: one.state.first_wall):
        for one in launch.state.ordered():
            started = one.first(e.RoundStarted)
            if started is None:
                continue
            number = one.number
            order = (number, started.master_addr, started.master_port, started.world_size)
            same = by_order.setdefault(order, [])
            # A port may be the same in each attempt; a rank is in one place.
            ranks = set(started.ranks)
            world = next((world for world in same if not world.ranks & ranks), None)
            if world is None:
                world = World(number, started.world_size)
                same.append(world)
            world.add(launch)
    worlds = [world for same in by_order.values() for world in same]
    for world in worlds:
        world.launches.sort(key=lambda one: (one.ranks(world.number), one.index))
    return worlds


def _groups(launches: Sequence[Launch], worlds: Sequence[World]) -> list[list[Launch]]:
    """Return the launches that worlds connect with each other."""
    group_of = list(range(len(launches)))

    def root(index: int) -> int:
        while group_of[index] != index:
            group_of[index] = group_of[group_of[index]]
            index = group_of[index]
        return index

    for world in worlds:
        for launch in world.launches[1:]:
            group_of[root(launch.index)] = root(world.launches[0].index)
    groups: dict[int, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(root(launch.index), []).append(launch)
    return list(groups.values())


def _with_spares(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Put launches that never had a round to the attempt that ran at that time."""
    ran = [attempt for attempt in attempts if attempt.worlds]
    if not ran:
        return list(attempts)
    spans = [(attempt.began, attempt.ended) for attempt in ran]
    for attempt in attempts:
        if attempt.worlds:
            continue
        span = began, ended = attempt.began, attempt.ended
        overlaps = [min(ended, until) - max(began, since) for since, until in spans]
        most = max(overlaps)
        best = overlaps.index(most)
        if most >= 0:
            ran[best].launches.extend(attempt.launches)
            spans[best] = (min(began, spans[best][0]), max(ended, spans[best][1]))
        else:
            ran.append(attempt)
            spans.append(span)
    for attempt in ran:
        attempt.launches.sort(key=lambda one: one.index)
    return ran


def _adopt_strays(attempt: Attempt) -> None:
    """Add what nodes tell of rounds whose start their journal lacks."""
    by_number = {world.number: world for world in attempt.worlds}
    for launch in attempt.launches:
        for number in launch.state.rounds:
            world = by_number.setdefault(number, World(number))
            if launch not in world.launches:
                world.add(launch)
    attempt.worlds[:] = [by_number[number] for number in sorted(by_number)]


# --- the axis -----------------------------------------------------------------------------------


def _place(launches: Sequence[Launch], attempts: Sequence[Attempt]) -> list[ClockOffset]:
    walls: list[int | None] = [None] * (1 + max((one.clock for one in launches), default=-1))
    for launch in launches:
        if walls[launch.clock] is None:
            walls[launch.clock] = launch.state.wall_ahead_ns
    meetings: list[Meeting] = []
    for attempt in attempts:
        ready = {launch.index: launch.state.began_ns for launch in attempt.launches}
        meetings += [_start_of(world, ready) for world in attempt.worlds]
        if attempt.worlds:
            meetings.append(_end_of(attempt.worlds[-1]))
    return place([meeting for meeting in meetings if meeting], walls)


def _start_of(world: World, ready: dict[int, int]) -> Meeting:
    """No node starts a round before all of its nodes are there and have stopped the one before.

    ``ready`` says since when that is so of each launch, and is kept up.
    """
    meeting = []
    for launch in world.launches:
        came, left = ready[launch.index], launch.state.rounds[world.number].began_ns
        if came <= left:
            meeting.append(Visit(launch.clock, came, left))
        stopped = world.stopped_on(launch)
        ready[launch.index] = max(came, came if stopped is None else stopped)
    return meeting


def _end_of(world: World) -> Meeting:
    """No node hears that the job has finished before all ranks have."""
    meeting = []
    for launch in world.launches:
        exits, end = launch.state.rounds[world.number].exits, launch.state.ended
        if end is None or end.outcome != "finished" or end.alone:
            return []
        if not exits or any(one.exit_code != 0 for one in exits):
            return []
        came, left = max(one.t for one in exits), _told_of_end(launch, world.number)
        if came <= left:
            meeting.append(Visit(launch.clock, came, left))
    return meeting


def _told_of_end(launch: Launch, number: int) -> int:
    decision = launch.state.decision
    ends = decision is not None and (decision.round, decision.action) == (number, "end")
    return decision.t if decision is not None and ends else launch.state.until_ns
