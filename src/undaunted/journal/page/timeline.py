"""What the timeline shows, as columns of small numbers: pure, from a job and its journals.

All times are whole milliseconds since the job began; columns hold differences, so that 1,000 ranks
with 100 restarts fit in a few megabytes. ``static/model.js`` undoes this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.base.text import one_line
from undaunted.journal import events as e
from undaunted.journal.goodput import Times
from undaunted.journal.job.rank_time import SPARE
from undaunted.journal.page.columns import (
    RankLists,
    Texts,
    differences,
    gapped_differences,
    ms,
    ranges,
    to_ms,
)
from undaunted.journal.page.marks import KINDS, Marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.goodput import Span
    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobRound, JobSummary
    from undaunted.journal.launch import RoundState

FORMAT = 1
CLASSES = (*(name.removesuffix("_ns") for name in Times.__struct_fields__), SPARE)
STARTING = ("spawn", "import", "initialise", "load")
WORKING = ("recomputed", "productive", "unknown")
_NO_LAUNCHER = 255
# Rounds times ranks whose milestones are shown one by one; of more, the oldest are left out.
_MOST_MILESTONES = 300_000


def timeline(job: JobSummary, launches: Sequence[Launch]) -> dict[str, Any]:
    """Return what ``static/model.js`` decodes.

    Args:
        job: the summary of the job.
        launches: those it was made from, placed on its axis by that.
    """
    texts, lists = Texts(), RankLists()
    marks = Marks(texts)
    by_node = _by_node(job, launches)
    detail_from_ns = _detail_from(job)
    nodes = [
        _node(job, place, by_node.get(name, []), texts, lists, marks, detail_from_ns)
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


def _until_ns(one: JobRound) -> int:
    """Return the end of a round; of one without an end, of what is told of it."""
    if one.stopped_ns is not None:
        return one.stopped_ns
    told = (part.began_ns + part.times.total_ns for part in one.parts)
    return max(told, default=one.began_ns)


def _by_node(job: JobSummary, launches: Sequence[Launch]) -> dict[str, list[Launch]]:
    """Return the launches of each node in the order in which they began to do something."""
    found: dict[str, list[Launch]] = {}
    for launch in sorted(launches, key=lambda one: _start_ns(job, one)):
        found.setdefault(launch.node, []).append(launch)
    return found


def _start_ns(job: JobSummary, launch: Launch) -> int:
    spans = job.lanes[launch.index]
    return spans[0].start_ns if spans else 0


def _detail_from(job: JobSummary) -> int:
    """Return from which moment on milestones of ranks are shown."""
    room = _MOST_MILESTONES
    for one in reversed(job.rounds):
        room -= sum(len(part.ranks) for part in one.parts)
        if room < 0:
            return one.began_ns + 1
    return 0


def _node(
    job: JobSummary,
    place: int,
    launches: Sequence[Launch],
    texts: Texts,
    lists: RankLists,
    marks: Marks,
    detail_from_ns: int,
) -> dict[str, Any]:
    start, classes, ends = _spans([span for one in launches for span in job.lanes[one.index]])
    rounds: dict[str, list[Any]] = {column: [] for column in _ROUND_COLUMNS}
    ranks: dict[int, None] = {}
    for launch in launches:
        marks.read(place, launch)
        for one in launch.state.ordered():
            row = _round(one, launch, texts, detailed=detail_from_ns)
            if row is None:
                continue
            ranks |= dict.fromkeys(row["ranks"])
            row["ranks"] = lists.place(row["ranks"])
            for column in _ROUND_COLUMNS:
                rounds[column].append(row[column])
    rounds["at"] = differences(rounds["at"])
    return {
        "name": one_line(job.nodes[place]),
        "from": start,
        "classes": classes,
        "lengths": differences(ends, start),
        "rounds": rounds,
        "all": ranges(sorted(ranks)),
    }


def _spans(spans: Sequence[Span]) -> tuple[int, list[int], list[int]]:
    """Return where the first span begins, the class of each, and where each ends."""
    numbers = {name: number for number, name in enumerate(CLASSES)}
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
    one: RoundState, launch: Launch, texts: Texts, *, detailed: int
) -> dict[str, Any] | None:
    """Return the row of one round of one launch; None if it never began."""
    started = one.first(e.RoundStarted)
    if started is None:
        return None
    begin = ms(launch, started.t)
    spawned, stopped = one.time_of(e.WorkersSpawned), one.time_of(e.RoundStopped)
    until = ms(launch, one.last_ns if stopped is None else stopped)
    row: dict[str, Any] = {
        "number": one.number,
        "at": begin,
        "length": max(0, until - begin),
        "spawned": None if spawned is None else ms(launch, spawned) - begin,
        "first": min((seen.first_iteration for seen in one.progress), default=None),
        "last": one.last_iteration,
        "ranks": started.ranks,
    }
    ranks = started.ranks if launch.on_axis(started.t) >= detailed else []
    for column, name in _MILESTONES:
        passed = one.milestones.get(name, {})
        row[column] = gapped_differences(
            [ms(launch, passed[rank]) if rank in passed else None for rank in ranks], begin
        )
    first_exits: dict[int, e.RankExited] = {}
    for exited in one.exits:
        first_exits.setdefault(exited.rank, exited)
    exits = [first_exits.get(rank) for rank in ranks]
    row["end"] = gapped_differences([None if x is None else ms(launch, x.t) for x in exits], begin)
    row["how"] = [0 if x is None else 1 + texts.place(_how(x)) for x in exits] if any(exits) else []
    return row


def _how(exited: e.RankExited) -> str:
    how = exited.signal or f"exit code {exited.exit_code}"
    return f"{how}, told to stop" if exited.by_us else how
