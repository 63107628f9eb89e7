"""Cuts the records of a rank into lives: from one start of the program to the next. Pure.

A life begins with a process, or where a program that is restarted inside of its process goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from undaunted.chaos.history import Start
from undaunted.digests.record import FORWARD, RNG
from undaunted.journal.events import RankReplaced, WorkersSpawned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from undaunted.chaos.history import History, Launch
    from undaunted.digests.record import Record

PARAMETERS = "parameters"

# Parameters that stay the same for longer than so many steps are placed by the last ones.
_MAX_CANDIDATES = 64


class Key(NamedTuple):
    """The place of a record in the iterations of the undisturbed run."""

    iteration: int
    at: str
    n: int


@dataclass
class Life:
    """The records of a rank from one start to the next.

    Attributes:
        start: which start it was.
        records: in the order of writing.
        keys: of each record.
        placed: False if it could not be found where in the undisturbed run this life began; the
            iterations of ``keys`` are those of the records then.
    """

    start: Start
    records: list[Record] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    placed: bool = True


class ReferenceRun:
    """The records of a rank in the undisturbed run, to lay others beside.

    Attributes:
        by_key: its records.
        order: of each key.
        begin: of each iteration, the lowest order in it.
        first: the first iteration, None if nothing was recorded in one.
        last: the last one.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.by_key: dict[Key, Record] = {}
        self.order: dict[Key, int] = {}
        self.begin: dict[int, int] = {}
        self._with_parameters: dict[str, list[int]] = {}
        self._random: list[tuple[Key, dict[str, str]]] = []
        for record in records:
            key = Key(record.iteration, record.at, record.n)
            self.by_key[key] = record
            self.begin.setdefault(key.iteration, len(self.order))
            self.order.setdefault(key, len(self.order))
            states = {name: of for name, of in record.parts.items() if name.endswith(RNG)}
            if states:
                self._random.append((key, states))
            if record.at == FORWARD and record.n == 0 and PARAMETERS in record.parts:
                self._with_parameters.setdefault(record.parts[PARAMETERS], []).append(
                    record.iteration
                )
        iterations = [iteration for iteration in self.begin if iteration >= 0]
        self.first = min(iterations, default=None)
        self.last = max(iterations, default=None)

    def iterations_with(self, parameters: str) -> list[int]:
        """The iterations that began with these parameters, ascending."""
        return self._with_parameters.get(parameters, [])

    def draws(self, iteration: int) -> bool:
        """Return whether the random state moved in an iteration; True where it is not known."""
        here = [(key, states) for key, states in self._random if key.iteration == iteration]
        after = [states for key, states in self._random if key.iteration > iteration]
        began = next((states for key, states in here if key.at == FORWARD), None)
        if began is None and here:
            began = here[0][1]
        if began is None or not after:
            return True
        return any(after[0].get(name, digest) != digest for name, digest in began.items())


def reference_lines(history: History) -> dict[int, ReferenceRun]:
    """Return the undisturbed run of each rank, one line per rank."""
    return {rank: ReferenceRun(records) for rank, records in history.records.items() if records}


def lives(history: History, lines: dict[int, ReferenceRun]) -> dict[int, list[Life]]:
    """Return the lives of each rank, in order.

    Args:
        history: of the run.
        lines: of the undisturbed run.
    """
    starts = dict(_starts(history.launches))
    return {
        rank: _lives_of(records, starts, lines.get(rank, ReferenceRun([])))
        for rank, records in history.records.items()
    }


def _starts(launches: Sequence[Launch]) -> Iterator[tuple[int, Start]]:
    for number, launch in enumerate(launches):
        for event in launch.events:
            if isinstance(event, WorkersSpawned):
                yield from ((pid, Start(number, event.round)) for pid in event.pids)
            elif isinstance(event, RankReplaced):
                yield event.pid, Start(number, event.round)


def _lives_of(
    records: Sequence[Record], starts: dict[int, Start], line: ReferenceRun
) -> list[Life]:
    found: list[Life] = []
    for process in _processes(records):
        start = starts.get(process[0].pid)
        if start is None:
            start = _guess(process[0].round, found)
        if process[0].counted:
            reached = max((key.iteration for life in found for key in life.keys), default=None)
            found += _counted(process, start, line, reached)
        else:
            found += _told(process, start, line)
    return found


def _processes(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of each process, in order."""
    groups: list[list[Record]] = []
    for record in records:
        last = groups[-1][-1] if groups else None
        if last is None or (last.pid, last.round) != (record.pid, record.round):
            groups.append([])
        groups[-1].append(record)
    return groups


def _guess(round_: int, before: Sequence[Life]) -> Start:
    """Return which start a process is that the journal does not know."""
    if not before:
        return Start(0, round_)
    launch, last, _ = before[-1].start
    return Start(launch if round_ > last else launch + 1, round_)


def _told(process: Sequence[Record], start: Start, line: ReferenceRun) -> Iterator[Life]:
    """Yield the lives of a process whose program tells its iterations."""
    life = Life(start)
    # Records of an iteration are numbered on where it is begun again without another in between.
    iteration = -1
    seen: dict[str, int] = {}
    before: dict[str, int] = {}
    for record in process:
        if record.iteration != iteration:
            iteration, seen, before = record.iteration, {}, {}
        # Or from 0 again, where it was begun anew from a later one that has recorded nothing.
        anew = record.n < seen.get(record.at, 0)
        if anew:
            seen = {}
        key = Key(iteration, record.at, record.n - before.get(record.at, 0))
        if anew or _goes_back(life, key, line):
            yield life
            life = Life(life.start._replace(part=life.start.part + 1))
            before = dict(seen)
            key = key._replace(n=record.n - before.get(record.at, 0))
        seen[record.at] = record.n + 1
        life.records.append(record)
        life.keys.append(key)
    yield life


def _goes_back(life: Life, key: Key, line: ReferenceRun) -> bool:
    if not life.keys or key.iteration > life.keys[-1].iteration:
        return False
    if key.iteration < life.keys[-1].iteration:
        return True
    # The same iteration once more, which it was not in the undisturbed run.
    return key.n > 0 and key not in line.by_key and key._replace(n=key.n - 1) in life.keys


def _counted(
    process: Sequence[Record], start: Start, line: ReferenceRun, reached: int | None
) -> Iterator[Life]:
    """Yield the lives of a process whose iterations were counted from 0 on.

    Where each began is found by the parameters it began with.

    Args:
        process: its records.
        start: its start.
        line: the undisturbed run.
        reached: how far the rank had come before, None if this is its first process.
    """
    life = Life(start)
    offset: int | None = None
    for place, record in enumerate(process):
        there = _iterations_like(record, line)
        if there is not None and offset is None:
            offset = _offset(process[place:], there, line, reached)
            life.placed = bool(there) or reached is None
        elif there and offset is not None and max(there) < record.iteration + offset:
            yield life
            reached = max(reached or 0, record.iteration + offset)
            life = Life(life.start._replace(part=life.start.part + 1))
            offset = _offset(process[place:], there, line, reached)
        life.records.append(record)
        life.keys.append(Key(record.iteration + (offset or 0), record.at, record.n))
    yield life


def _iterations_like(record: Record, line: ReferenceRun) -> list[int] | None:
    """Return which iterations began with the parameters of a record, None if it does not tell."""
    if record.at != FORWARD or record.n != 0 or PARAMETERS not in record.parts:
        return None
    return line.iterations_with(record.parts[PARAMETERS])


def _offset(
    records: Sequence[Record], there: Sequence[int], line: ReferenceRun, reached: int | None
) -> int:
    """Return what is added to counted iterations so that they are those of the undisturbed run.

    Args:
        records: of a process, from the one on that is to be placed.
        there: iterations that began with the same parameters; where several did, that one is
            taken with which most of what follows is the same as well.
        line: the undisturbed run.
        reached: how far the rank had come before, None if this is its first process.
    """
    counted = records[0].iteration
    if not there:
        return 0
    if reached is None and counted in there:
        return 0
    likely = [i for i in there if reached is None or i <= reached][-_MAX_CANDIDATES:] or there[:1]
    follows = [(r.iteration, like) for r in records if (like := _iterations_like(r, line))]
    return max((_alike(i - counted, follows), i - counted) for i in likely)[1]


def _alike(offset: int, follows: Sequence[tuple[int, Sequence[int]]]) -> int:
    """Return how many of the records fit to an offset before the first that does not."""
    number = 0
    for iteration, like in follows:
        if iteration + offset not in like:
            break
        number += 1
    return number
