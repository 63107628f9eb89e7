"""The timeline as columns of small numbers: pure, from a job and its launches.

All times are whole milliseconds since the job began; columns hold differences, so that 1,000 ranks
with 100 restarts fit in a few megabytes. ``static/model.js`` undoes this.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base.text import one_line
from undaunted.journal import events as e
from undaunted.journal.goodput import STARTING, Times
from undaunted.journal.job.rank_time import SPARE
from undaunted.journal.words import exit_in_words, is_news, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from undaunted.journal.goodput import Span
    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobRound, JobSummary
    from undaunted.journal.launch import RoundState


FORMAT = 1
CLASSES = (*(name.removesuffix("_ns") for name in Times.__struct_fields__), SPARE)
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
    """Return the end of a round; of one without an end, of its last part."""
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
    how = [0 if x is None else 1 + texts.place(exit_in_words(x)) for x in exits]
    row["how"] = how if any(exits) else []
    return row


KINDS = (
    "crash", "hang", "spawn", "lost",  # what ended a round first
    "victim", "in-process restart", "checkpoint", "fault", "health", "warning",
)  # fmt: skip
_FAILURES = KINDS[:4]
_KIND_OF: dict[type[e.Event], str] = {
    e.InProcessPhase: "in-process restart",
    e.RankLost: "in-process restart",
    e.NodeChecked: "health",
    **dict.fromkeys(
        (e.AgentPaused, e.SignalReceived, e.SignalPassedOn, e.ControlRequested, e.TemplateLost,
         e.Remark),
        "warning",
    ),
}  # fmt: skip
# Other marks than failures; of more, an even part is kept.
_MOST = 20_000
# By far the most events; none of them is a mark.
_QUIET = frozenset((e.RankMilestone, e.RankExited, e.RoundProgress))
_STEP = re.compile(r"\bstep=(\d+)")
_OF_CHECKPOINTS = ("saved", "failed", "loaded", "rescued", "skipped")


class Mark(NamedTuple):
    """A moment, in milliseconds; ``node`` is an index, ``text`` too, ``rank`` -1 for none."""

    at: int
    kind: str
    node: int
    rank: int
    text: int


class Marks:
    """Collects the marks of all launches."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._failures: list[tuple[Mark, tuple[int, int]]] = []  # with launch and round
        self._others: list[Mark] = []

    def read(self, node: int, launch: Launch) -> None:
        """Take the marks of one launch; ``node`` is the index of its node."""
        for one in launch.state.ordered():
            self._failure(node, launch, one)
        saved: dict[tuple[int, str], list[e.RankEvent]] = {}
        for event in launch.events:
            if type(event) in _QUIET:
                continue
            if isinstance(event, e.RankEvent) and event.name == "checkpoint":
                what, step = event.text.split(" ", 1)[0], _STEP.search(event.text)
                if what in _OF_CHECKPOINTS and step is not None:
                    saved.setdefault((event.round, f"{what}, step {step[1]}"), []).append(event)
            else:
                self._other(node, launch, event)
        for (_, key), told in saved.items():
            at = max(ms(launch, one.at_ns) for one in told)
            text = f"{key}, by {len(told)} ranks" if len(told) > 1 else key
            rank = told[0].rank if len(told) == 1 else -1
            self._others.append(self._mark(at, "checkpoint", node, rank, text))

    def _failure(self, node: int, launch: Launch, one: RoundState) -> None:
        failure, verdict = one.first(e.FailureDetected), one.first(e.Verdict)
        if failure is None:
            return
        text = words_of(failure if verdict is None else verdict).full
        unjudged = -1 if failure.kind == "hang" else failure.rank
        rank = unjudged if verdict is None else verdict.rank
        at = ms(launch, failure.t if failure.since_ns is None else failure.since_ns)
        kind = failure.kind if failure.kind in _FAILURES else "crash"
        mark = self._mark(at, kind, node, rank, text)
        self._failures.append((mark, (launch.index, one.number)))

    def _other(self, node: int, launch: Launch, event: e.Event) -> None:
        kind = _KIND_OF.get(type(event))
        if isinstance(event, e.RankEvent) and event.name == "fault":
            kind = "fault"
        again = isinstance(event, e.InProcessPhase) and event.phase != "detect"
        if kind is not None and is_news(event) and not again:
            at, rank = getattr(event, "at_ns", event.t), getattr(event, "rank", -1)
            mark = self._mark(ms(launch, at), kind, node, rank, words_of(event).full)
            self._others.append(mark)

    def blame(self, rounds: Sequence[JobRound], places: Mapping[str, int]) -> None:
        """Turn failures of nodes that failed because of another one into those of victims.

        Args:
            rounds: of the job.
            places: index of each node.
        """
        guilty: dict[tuple[int, int], int] = {}
        for one in rounds:
            if one.failure is None or one.failure.node not in places:
                continue
            place = places[one.failure.node]
            guilty |= {(part.launch, one.round): place for part in one.parts}
            if one.failure.kind == "lost":
                known = (one.failed_ns, one.stopped_ns, one.began_ns)
                at = to_ms(next(moment for moment in known if moment is not None))
                mark = self._mark(at, "lost", place, -1, one.failure.line)
                self._failures.append((mark, (-1, one.round)))
        self._failures = [
            (mark if guilty.get(key, mark.node) == mark.node else mark._replace(kind="victim"), key)
            for mark, key in self._failures
        ]

    def kept(self) -> list[Mark]:
        """Return all marks in the order of time; of many that are no failures, an even part."""
        failures = [mark for mark, _ in self._failures if mark.kind in _FAILURES]
        others = self._others + [mark for mark, _ in self._failures if mark.kind == "victim"]
        others.sort()
        keep = -(-len(others) // _MOST) or 1
        return sorted(failures + others[::keep])

    def columns(self) -> dict[str, list[int]]:
        """Return these marks as columns."""
        marks = self.kept()
        return {
            "at": differences(mark.at for mark in marks),
            "kind": [KINDS.index(mark.kind) for mark in marks],
            "node": [mark.node for mark in marks],
            "rank": [mark.rank for mark in marks],
            "text": [mark.text for mark in marks],
        }

    def _mark(self, at: int, kind: str, node: int, rank: int, text: str) -> Mark:
        return Mark(at, kind, node, rank, self._texts.place(text))


_MS_NS = 1_000_000
_LONGEST_TEXT = 500


class Texts:
    """Texts, each of them once; what users' programs say is made printable and one line."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """Return the index of ``text`` in ``all``."""
        found = self._places.get(text)
        if found is None:
            found = self._places[text] = len(self.all)
            self.all.append(one_line(text, _LONGEST_TEXT))
        return found


class RankLists:
    """Lists of ranks, each of them once, as first, count, first, count, ..."""

    def __init__(self) -> None:
        self.all: list[list[int]] = []
        self._places: dict[tuple[int, ...], int] = {}

    def place(self, ranks: Sequence[int]) -> int:
        """Return the index of these ranks in ``all``."""
        key = tuple(ranks)
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self.all)
            self.all.append(ranges(key))
        return found


def ranges(ranks: Iterable[int]) -> list[int]:
    """Return ranks in their order as first, count, first, count, ..."""
    out: list[int] = []
    for rank in ranks:
        if out and rank == out[-2] + out[-1]:
            out[-1] += 1
        else:
            out += [rank, 1]
    return out


def to_ms(ns: int) -> int:
    """Return whole milliseconds, rounded."""
    return (ns + _MS_NS // 2) // _MS_NS


def ms(launch: Launch, t: int) -> int:
    """Return a moment of a launch's clock on the axis of the job, in milliseconds; at least 0."""
    return to_ms(max(0, launch.on_axis(t)))


def differences(values: Iterable[int], start: int = 0) -> list[int]:
    """Return by how much each value is greater than the one before it."""
    out = []
    for value in values:
        out.append(value - start)
        start = value
    return out


def gapped_differences(values: Sequence[int | None], start: int) -> list[int | None]:
    """Return the same where values may be missing; nothing at all if they all are."""
    out: list[int | None] = []
    known = False
    for value in values:
        if value is None:
            out.append(None)
            continue
        known = True
        out.append(value - start)
        start = value
    return out if known else []
