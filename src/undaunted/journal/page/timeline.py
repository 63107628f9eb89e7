"""What the timeline shows, as columns of small numbers: pure, from a job and its journals.

All times are whole milliseconds since the job began; columns hold differences, so that 1,000 ranks
with 100 restarts fit in a few megabytes. ``static/model.js`` undoes this.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from undaunted.base.text import one_line
from undaunted.journal import events as e
from undaunted.journal.goodput import Times
from undaunted.journal.job.spent import SPARE
from undaunted.journal.page.columns import (
    RankLists,
    Texts,
    differences,
    gapped_differences,
    ranges,
    to_ms,
)
from undaunted.journal.page.marks import KINDS, Marks
from undaunted.journal.query import by_round, first, node_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.goodput import Span
    from undaunted.journal.job.values import JobRound, JobSummary
    from undaunted.journal.reader import Journal

FORMAT = 1
CLASSES = (*(name.removesuffix("_ns") for name in Times.__struct_fields__), SPARE)
STARTING = ("spawn", "import", "initialise", "load")
WORKING = ("recomputed", "productive", "unknown")
_NO_LAUNCHER = 255
# Rounds times ranks whose milestones are shown one by one; of more, the oldest are left out.
_MOST_MILESTONES = 300_000


def timeline(job: JobSummary, journals: Sequence[Journal]) -> dict[str, Any]:
    """Return what ``static/model.js`` decodes.

    Args:
        job: the summary of the job.
        journals: those it was made from.
    """
    texts, lists = Texts(), RankLists()
    marks = Marks(texts)
    launches = _by_node(job, journals)
    detail_from_ns = _detail_from(job)
    nodes = [
        _node(name, place, launches.get(name, []), texts, lists, marks, detail_from_ns)
        for place, name in enumerate(job.nodes)
    ]
    marks.blame(job.rounds, {name: place for place, name in enumerate(job.nodes)})
    return {
        "format": FORMAT,
        "length": to_ms(job.duration_ns),
        "classes": CLASSES,
        "starting": STARTING,
        "working": WORKING,
        "kinds": KINDS,
        "rounds": {
            "number": [one.round for one in job.rounds],
            "at": differences(to_ms(one.began_ns) for one in job.rounds),
            "until": [to_ms(_until_ns(one)) for one in job.rounds],
            "outcome": [texts.place(one.outcome) for one in job.rounds],
        },
        "nodes": nodes,
        "marks": marks.columns(),
        "detailed_from": to_ms(detail_from_ns),
        "lists": lists.all,
        "text": texts.all,
    }


class _Launch:
    """One launch of one node: its spans, its events, and where its clock lies on the axis.

    ``index`` is that in ``JobSummary.launches``, -1 if it is not there.
    """

    def __init__(
        self, index: int, spans: Sequence[Span], events: Sequence[e.Event], offset_ns: int
    ) -> None:
        self.index = index
        self.spans = spans
        self.rounds = by_round(events)
        self.events = events
        self.offset_ns = offset_ns

    def ms(self, t: int) -> int:
        """Return a moment of the launch's clock on the axis of the job."""
        return to_ms(t + self.offset_ns) if t + self.offset_ns > 0 else 0


def _until_ns(one: JobRound) -> int:
    """Return the end of a round; of one without an end, of what is told of it."""
    if one.stopped_ns is not None:
        return one.stopped_ns
    told = (part.began_ns + part.times.total_ns for part in one.parts)
    return max(told, default=one.began_ns)


def _by_node(job: JobSummary, journals: Sequence[Journal]) -> dict[str, list[_Launch]]:
    offsets = {(one.boot_id, node): one.offset_ns for one in job.clocks for node in one.nodes}
    places: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for place, one in enumerate(job.launches):
        places[one.node, one.boot_id, one.pid].append(place)
    found: dict[str, list[_Launch]] = defaultdict(list)
    for journal in journals:
        for events in journal.launches():
            opened = first(events, e.JournalOpened) or e.JournalOpened(t=0)
            node = node_of(events)
            same = places[node, opened.boot_id, opened.pid]
            index = same.pop(0) if same else -1
            spans = job.lanes[index] if index >= 0 else []
            offset_ns = offsets.get((opened.boot_id, node), 0)
            found[node].append(_Launch(index, spans, events, offset_ns))
    for launches in found.values():
        launches.sort(key=lambda launch: launch.spans[0].start_ns if launch.spans else 0)
    return found


def _detail_from(job: JobSummary) -> int:
    """Return from which moment on milestones of ranks are shown."""
    room = _MOST_MILESTONES
    for one in reversed(job.rounds):
        room -= sum(len(part.ranks) for part in one.parts)
        if room < 0:
            return one.began_ns + 1
    return 0


def _node(
    name: str,
    place: int,
    launches: Sequence[_Launch],
    texts: Texts,
    lists: RankLists,
    marks: Marks,
    detail_from_ns: int,
) -> dict[str, Any]:
    start, classes, ends = _spans(launches)
    rounds: dict[str, list[Any]] = {column: [] for column in _ROUND_COLUMNS}
    ranks: dict[int, None] = {}
    for launch in launches:
        marks.read(place, launch.index, launch.events, launch.ms)
        for number, events in launch.rounds.items():
            row = _round(number, events, launch, texts, detailed=detail_from_ns)
            if row is None:
                continue
            ranks |= dict.fromkeys(row["ranks"])
            row["ranks"] = lists.place(row["ranks"])
            for column in _ROUND_COLUMNS:
                rounds[column].append(row[column])
    rounds["at"] = differences(rounds["at"])
    return {
        "name": one_line(name),
        "from": start,
        "classes": classes,
        "lengths": differences(ends, start),
        "rounds": rounds,
        "all": ranges(sorted(ranks)),
    }


def _spans(launches: Sequence[_Launch]) -> tuple[int, list[int], list[int]]:
    """Return where the first span begins, the class of each, and where each ends."""
    numbers = {name: number for number, name in enumerate(CLASSES)}
    spans = [span for launch in launches for span in launch.spans]
    start = now = to_ms(spans[0].start_ns) if spans else 0
    classes: list[int] = []
    ends: list[int] = []
    for span in spans:
        for kind, until in (
            (_NO_LAUNCHER, to_ms(span.start_ns)),
            (numbers[span.kind], to_ms(span.end_ns)),
        ):
            if until <= now:
                continue
            if classes and classes[-1] == kind:
                ends[-1] = until
            else:
                classes.append(kind)
                ends.append(until)
            now = until
    return start, classes, ends


_ROUND_COLUMNS = (
    "number", "at", "length", "spawned", "first", "last", "ranks",
    "line", "ready", "step", "end", "how",
)  # fmt: skip
_MILESTONES = (("line", "first_line"), ("ready", "initialized"), ("step", "first_step"))


def _round(
    number: int, events: Sequence[e.Event], launch: _Launch, texts: Texts, *, detailed: int
) -> dict[str, Any] | None:
    """Return the row of one round of one launch; None if it never began."""
    seen = _Seen(events)
    if seen.started is None:
        return None
    ranks = seen.started.ranks
    begin = launch.ms(seen.started.t)
    until = launch.ms(seen.until)
    row: dict[str, Any] = {
        "number": number,
        "at": begin,
        "length": max(0, until - begin),
        "spawned": None if seen.spawned is None else launch.ms(seen.spawned) - begin,
        "first": seen.first,
        "last": seen.last,
        "ranks": ranks,
    }
    shown = seen.started.t + launch.offset_ns >= detailed
    for column, name in _MILESTONES:
        moments = [seen.passed.get((name, rank)) for rank in ranks] if shown else []
        row[column] = gapped_differences(
            [None if t is None else launch.ms(t) for t in moments], begin
        )
    exits = [seen.exits.get(rank) for rank in ranks] if shown else []
    row["end"] = gapped_differences([None if x is None else launch.ms(x.t) for x in exits], begin)
    row["how"] = [0 if x is None else 1 + texts.place(_how(x)) for x in exits] if any(exits) else []
    return row


class _Seen:
    """What the page needs of the events of one round, in one pass."""

    def __init__(self, events: Sequence[e.Event]) -> None:
        self.started: e.RoundStarted | None = None
        self.spawned: int | None = None
        self.until = 0
        self.first: int | None = None
        self.last: int | None = None
        self.passed: dict[tuple[str, int], int] = {}
        self.exits: dict[int, e.RankExited] = {}
        stopped = None
        latest = 0
        for event in events:
            latest = max(event.t, latest)
            if isinstance(event, e.RankMilestone):
                self.passed.setdefault((event.name, event.rank), event.at_ns)
            elif isinstance(event, e.RankExited):
                self.exits.setdefault(event.rank, event)
            elif isinstance(event, e.RoundProgress):
                self._progress(event)
            elif isinstance(event, e.RoundStarted):
                self.started = self.started or event
            elif isinstance(event, e.WorkersSpawned):
                self.spawned = event.t if self.spawned is None else self.spawned
            elif isinstance(event, e.RoundStopped):
                stopped = event.t
        self.until = latest if stopped is None else stopped

    def _progress(self, seen: e.RoundProgress) -> None:
        low, high = seen.first_iteration, seen.last_iteration
        self.first = low if self.first is None else min(low, self.first)
        self.last = high if self.last is None else max(high, self.last)


def _how(exited: e.RankExited) -> str:
    how = exited.signal or f"exit code {exited.exit_code}"
    return f"{how}, told to stop" if exited.by_us else how
