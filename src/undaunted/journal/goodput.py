"""Where the time of a run went: each moment belongs to one class. Pure functions.

The timeline of a round is cut at the moments the journal knows, in the order in which they must
have happened; a moment that is missing, or contradicts those before it, leaves its class empty. So
the classes always add up to the time that passed, and nothing is negative.

What the ranks did between two steps is told by how far they came (`RoundProgress`): steps that an
earlier round had completed are done again, and so is, later, the step that a failure cuts short.

In a job of several nodes a launch does not know all that counts: what failed on another node, and
what others had done. That is passed in (`Outside`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.journal.events import (
    Decision,
    Event,
    EvidenceCollected,
    FailureDetected,
    JobEnded,
    JobStarted,
    RankMilestone,
    RoundProgress,
    RoundStarted,
    RoundStopped,
    StopRequested,
    TemplateReady,
    Verdict,
    WorkersSpawned,
)
from undaunted.journal.query import by_round, every, first, time_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NS = 1_000_000_000

ACCOUNTED: tuple[type[Event], ...] = (
    *(JobStarted, TemplateReady, RoundStarted, WorkersSpawned, RankMilestone, RoundProgress),
    *(FailureDetected, EvidenceCollected, Verdict, Decision, StopRequested, RoundStopped),
    JobEnded,
)
"""The kinds of events that `account` looks at; of all others it takes the time of the last."""


class Span(NamedTuple):
    """A stretch of time of one class, its name without ``_ns``; ``round`` -1: before the first."""

    round: int
    kind: str
    start_ns: int
    end_ns: int


class Outside(NamedTuple):
    """What a launch does not know of one of its rounds; times are of its own clock.

    Attributes:
        done: iterations below this one were completed before, by whomever.
        broke_ns: when work ended because of a failure somewhere, None = as this node knows it.
        noticed_ns: when that was noticed.
        judged_ns: when what was gathered about it had been judged, None = nothing was.
    """

    done: int = 0
    broke_ns: int | None = None
    noticed_ns: int | None = None
    judged_ns: int | None = None


class Times(msgspec.Struct, kw_only=True):
    """How long each class lasted, in nanoseconds. In the order in which they occur in a round.

    Attributes:
        spawn_ns: the round begins, until all workers exist; without the template's imports.
        import_ns: the template's imports while workers wait for them, and until the user's program
            runs on the last rank.
        initialise_ns: until monitoring has begun on the last rank.
        load_ns: until the last rank has begun its first step.
        recomputed_ns: steps that an earlier round had completed, and the one a failure cut short.
        productive_ns: all other steps, with what belongs to them, up to the end of the program.
        detect_ns: until the failure is noticed; a hang begins with the last sign of life.
        evidence_ns: until stacks and states are gathered and judged.
        decide_ns: until the ranks are told to stop.
        stop_ns: until no process of the round is left.
        idle_ns: everything else, mostly between two rounds.
        unknown_ns: the program ran, in a run in which no rank ever called ``undaunted.step``.
    """

    spawn_ns: int = 0
    import_ns: int = 0
    initialise_ns: int = 0
    load_ns: int = 0
    recomputed_ns: int = 0
    productive_ns: int = 0
    detect_ns: int = 0
    evidence_ns: int = 0
    decide_ns: int = 0
    stop_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0

    @property
    def total_ns(self) -> int:
        """The sum of all classes."""
        return sum(getattr(self, name) for name in self.__struct_fields__)

    def add(self, other: Times) -> None:
        """Add the times of ``other``."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Account(msgspec.Struct, kw_only=True):
    """Where the time of one launch went.

    Attributes:
        rounds: by number, each until the next one begins.
        total: all rounds, and what was before the first.
        steps_known: whether any rank called ``undaunted.step``.
        spans: the same as stretches of time, one after the other.
    """

    rounds: dict[int, Times]
    total: Times
    steps_known: bool
    spans: list[Span] = []

    @property
    def goodput(self) -> float | None:
        """The productive part of the time, 0 to 1; None if that cannot be told."""
        total_ns = self.total.total_ns
        return self.total.productive_ns / total_ns if self.steps_known and total_ns else None


def account(
    events: Sequence[Event],
    outside: Mapping[int, Outside] | None = None,
    *,
    stepped: bool = False,
) -> Account:
    """Return where the time of one launch went, until its end or, without one, its last event.

    Args:
        events: of the launch.
        outside: by round, what else is known.
        stepped: a rank of another launch called ``undaunted.step``.
    """
    rounds = by_round(events)
    begins = {number: _begin(group) for number, group in rounds.items()}
    start = time_of(first(events, JobStarted))
    if start is None:
        start = min((event.t for event in events), default=0)
    end = time_of(first(events, JobEnded))
    if end is None:
        end = max((event.t for event in events), default=start)
    steps_known = stepped or calls_step(events)
    walk = _Walk(start, max(start, end))
    walk.until("idle", min(begins.values(), default=end))
    total = walk.take()
    done = 0  # iterations below this one have been completed
    times: dict[int, Times] = {}
    following = [*list(begins.values())[1:], end]
    for number, until in zip(rounds, following, strict=False):
        more = (outside or {}).get(number, Outside())
        more = more._replace(done=max(done, more.done))
        walk.round = number
        _round(walk, rounds[number], max(walk.now, until), more, steps_known=steps_known)
        times[number] = walk.take()
        total.add(times[number])
        reached = [seen.last_iteration for seen in every(rounds[number], RoundProgress)]
        done = max([done, *reached])
    return Account(rounds=times, total=total, steps_known=steps_known, spans=walk.spans)


def calls_step(events: Sequence[Event]) -> bool:
    """Tell whether a rank called ``undaunted.step``."""
    return any(mark.name == "first_step" for mark in every(events, RankMilestone))


class _Walk:
    """Goes along the time axis and notes how much of it belongs to which class."""

    def __init__(self, start: int, end: int) -> None:
        self.now = start
        self.round = -1
        self.spans: list[Span] = []
        self._end = end
        self._times = Times()

    def until(self, name: str, moment: int | None, *, limit: int | None = None) -> None:
        """Give the time up to ``moment`` (but not beyond ``limit``) to a class; None = none."""
        if moment is None:
            return
        moment = min(moment, self._end if limit is None else min(limit, self._end))
        if moment > self.now:
            field = f"{name}_ns"
            setattr(self._times, field, getattr(self._times, field) + moment - self.now)
            self.spans.append(Span(self.round, name, self.now, moment))
            self.now = moment

    def take(self) -> Times:
        """Return what was noted since the last call."""
        times, self._times = self._times, Times()
        return times


def _begin(events: Sequence[Event]) -> int:
    started = first(events, RoundStarted)
    return min(event.t for event in events) if started is None else started.t


def _round(
    walk: _Walk, events: Sequence[Event], end: int, outside: Outside, *, steps_known: bool
) -> None:
    """Walk through one round."""
    failure = failure_of(events, outside)
    told = time_of(first(events, StopRequested))
    decided = time_of(first(events, Decision))
    stopped = time_of(first(events, RoundStopped))
    # A node that is cut off stops by itself, and may hear of a decision about others later.
    ended = min((moment for moment in (decided, told, stopped) if moment is not None), default=end)
    broke = min(ended if failure is None else failure.broke_ns, end)
    stage = _start_up(walk, events, broke)
    if not steps_known and stage != "spawn":
        stage = "unknown"
    if stage == "work":
        _steps(walk, events, broke, outside.done, failed=failure is not None)
    walk.until("productive" if stage == "work" else stage, broke)
    if failure is not None:
        walk.until("detect", failure.noticed_ns, limit=end)
        walk.until("evidence", failure.judged_ns, limit=end)
    walk.until("decide", decided if told is None else told, limit=end)
    walk.until("stop", stopped, limit=end)
    walk.until("idle", end)


class Break(NamedTuple):
    """When a failure ended the work of a round, was noticed, and was judged (None = never)."""

    broke_ns: int
    noticed_ns: int
    judged_ns: int | None


def failure_of(events: Sequence[Event], outside: Outside | None = None) -> Break | None:
    """Return the moments of what ended a round, None if it did not fail.

    Args:
        events: of the round.
        outside: what is known of other nodes, which goes before what this one knows.
    """
    if outside is not None and outside.broke_ns is not None:
        noticed = outside.broke_ns if outside.noticed_ns is None else outside.noticed_ns
        return Break(outside.broke_ns, noticed, outside.judged_ns)
    failure = first(events, FailureDetected)
    if failure is None:
        return None
    decided = time_of(first(events, Decision))
    return Break(_broke(events, failure), failure.t, _judged(events, decided))


def _start_up(walk: _Walk, events: Sequence[Event], broke: int) -> str:
    """Walk to the first step, or as far as the round came; return what it was at then."""
    ready = first(events, TemplateReady)
    spawned = time_of(first(events, WorkersSpawned))
    if ready is not None and spawned is not None and ready.t <= spawned:
        walk.until("spawn", ready.t - ready.import_ns, limit=broke)
        walk.until("import", ready.t, limit=broke)
    stage = "spawn"
    for name, moment, following in (
        ("spawn", spawned, "import"),
        ("import", _last(events, "first_line"), "initialise"),
        ("initialise", _last(events, "initialized"), "load"),
        ("load", _last(events, "first_step"), "work"),
    ):
        if moment is not None:
            walk.until(name, moment, limit=broke)
            stage = following
    return stage


def _steps(walk: _Walk, events: Sequence[Event], broke: int, done: int, *, failed: bool) -> None:
    """Walk through the steps of a round, up to ``broke``."""
    seen = every(events, RoundProgress)
    if not seen:
        return
    last = seen[-1]
    known = [(seen[0].first_iteration, walk.now)]
    known += [(one.last_iteration, one.last_ns) for one in seen]
    if last.last_iteration < done:  # also the last step is one that was done before
        walk.until("recomputed", broke)
        return
    walk.until("recomputed", _moment_of(done, known), limit=broke)
    walk.until("productive", last.last_ns, limit=broke)
    walk.until("recomputed" if failed else "productive", broke)


def _moment_of(iteration: int, known: Sequence[tuple[int, int]]) -> int | None:
    """Return when an iteration was begun, by the moments of others; None = before all of them."""
    for (low, low_ns), (high, high_ns) in pairwise(known):
        if low < iteration <= high:
            return low_ns + (high_ns - low_ns) * (iteration - low) // (high - low)
    return None


def _broke(events: Sequence[Event], failure: FailureDetected) -> int:
    """Return when work ended because of a failure: for a hang, the last sign of life."""
    moments = [one.since_ns for one in every(events, FailureDetected) if one.since_ns is not None]
    moment = min(moments, default=failure.t)
    verdict = first(events, Verdict)
    if failure.kind == "hang" and verdict is not None and verdict.limit_s is not None:
        moment -= round(verdict.limit_s * _NS)
    return moment


def _judged(events: Sequence[Event], decided: int | None) -> int | None:
    """Return when what was gathered had been judged; None if nothing was gathered."""
    gathered = time_of(first(events, EvidenceCollected))
    verdict = time_of(first(events, Verdict))
    if gathered is None or verdict is None or decided is None or verdict > decided:
        return gathered
    return max(gathered, verdict)


def _last(events: Sequence[Event], name: str) -> int | None:
    """Return when the last of those ranks that passed a milestone did so."""
    return max(
        (one.at_ns for one in every(events, RankMilestone) if one.name == name), default=None
    )
