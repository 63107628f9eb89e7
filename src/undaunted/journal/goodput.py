"""Gives each moment of a run to one class of time. Pure functions.

The timeline of a round is cut at the moments the journal knows, in the order in which they must
have happened; a moment that is missing, or contradicts those before it, leaves its class empty. So
the classes always add up to the time that passed, and nothing is negative.

A failure need not end the work of a node: where others may go on without the ranks to blame, a node
that has begun another step after it was noticed has gone on, until the round ends or it fails.

`RoundProgress` says how far the ranks came between two steps: steps that an earlier
round had completed are done again, and later also the step that a failure cuts short.

In a job of several nodes a launch does not know all that counts: what failed on another node, and
what others had done. That is passed in (`RoundContext`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.journal import events as e

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from undaunted.journal.launch import LaunchState, RoundState

STARTING = ("spawn", "import", "initialise", "load")
"""The classes of time until every rank has begun its first step, see `Times`."""

_NS = 1_000_000_000


class Span(NamedTuple):
    """A stretch of time of one class, its name without ``_ns``; ``round`` -1: before the first."""

    round: int
    kind: str
    start_ns: int
    end_ns: int


class RoundContext(NamedTuple):
    """Facts of a round that a launch does not know by itself; times are of its clock.

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
    """The duration of each class, in nanoseconds. In the order in which they occur in a round.

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
        decide_ns: until the ranks are to stop.
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

    @classmethod
    def of(cls, spent: Mapping[str, int], ranks: int = 1) -> Times:
        """Return the times of as many ranks that spent this each, by class."""
        return cls(**{f"{kind}_ns": ns * ranks for kind, ns in spent.items()})

    @property
    def total_ns(self) -> int:
        """The sum of all classes."""
        return sum(getattr(self, name) for name in self.__struct_fields__)

    def add(self, other: Times) -> None:
        """Add the times of ``other``."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Account(msgspec.Struct, kw_only=True):
    """The time of one launch by class.

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
    launch: LaunchState,
    context: Mapping[int, RoundContext] | None = None,
    *,
    stepped: bool = False,
) -> Account:
    """Return where the time of one launch went, until its end or, without one, its last event.

    Args:
        launch: what its journal tells.
        context: by round, what else is known.
        stepped: a rank of another launch called ``undaunted.step``.
    """
    context, nothing = context or {}, RoundContext()
    rounds = launch.ordered()
    end = launch.until_ns
    steps_known = stepped or launch.stepped
    walk = _Walk(launch.began_ns, end)
    walk.until("idle", min((one.began_ns for one in rounds), default=end))
    walk.take()
    done = 0  # iterations below this one have been completed
    times: dict[int, Times] = {}
    following = [*(one.began_ns for one in rounds[1:]), end]
    for one, until in zip(rounds, following, strict=False):
        more = context.get(one.number, nothing)
        done = max(done, more.done)
        walk.round = one.number
        _round(walk, one, max(walk.now, until), more, done, steps_known=steps_known)
        times[one.number] = walk.take()
        done = max(done, one.last_iteration or 0)
    total = Times.of(spent_in(walk.spans))
    return Account(rounds=times, total=total, steps_known=steps_known, spans=walk.spans)


def times_of(one: RoundState, until_ns: int) -> Times:
    """Return where the time of one round went, as its node alone knows it, until a moment."""
    walk = _Walk(one.began_ns, until_ns)
    _round(walk, one, until_ns, RoundContext(), 0, steps_known=True)
    return walk.take()


def spent_in(spans: Iterable[Span]) -> dict[str, int]:
    """Return how long each class lasted that occurs, by its name."""
    spent: dict[str, int] = {}
    for _, kind, start, end in spans:
        spent[kind] = spent.get(kind, 0) + end - start
    return spent


class _Walk:
    """Goes along the time axis and notes how much of it belongs to which class."""

    def __init__(self, start: int, end: int) -> None:
        self.now = start
        self.round = -1
        self.spans: list[Span] = []
        self._end = end
        self._taken = 0

    def until(self, name: str, moment: int | None, limit: int | None = None) -> None:
        """Give the time up to ``moment`` (but not beyond ``limit``) to a class; None = none."""
        if moment is None:
            return
        if limit is None or limit > self._end:
            limit = self._end
        moment = min(moment, limit)
        if moment > self.now:
            self.spans.append(Span(self.round, name, self.now, moment))
            self.now = moment

    def take(self) -> Times:
        """Return what was noted since the last call."""
        since, self._taken = self._taken, len(self.spans)
        return Times.of(spent_in(self.spans[since:]))


def _round(
    walk: _Walk, one: RoundState, end: int, context: RoundContext, done: int, *, steps_known: bool
) -> None:
    """Walk through one round; iterations below ``done`` were completed before, by whomever."""
    failure = failure_of(one, context)
    told = one.time_of(e.StopRequested)
    decided = one.time_of(e.Decision)
    stopped = one.time_of(e.RoundStopped)
    # A node that is cut off stops by itself, and may hear of a decision about others later.
    ended = min((moment for moment in (decided, told, stopped) if moment is not None), default=end)
    broke = min(ended if failure is None else failure.broke_ns, end)
    stage = _start_up(walk, one, broke)
    if not steps_known and stage != "spawn":
        stage = "unknown"
    began = walk.now
    if stage == "work":
        _steps(walk, one, began, broke, done, failed=failure is not None)
    walk.until("productive" if stage == "work" else stage, broke)
    if failure is not None:
        walk.until("detect", failure.noticed_ns, limit=end)
        on = stage == "work" and went_on(one, failure.noticed_ns)
        judged = failure.judged_ns
        if on and judged is not None and judged > one.progress[-1].last_ns:
            judged = None  # that was about what ended the work in the end
        walk.until("evidence", judged, limit=end if stopped is None else min(stopped, end))
        if on:
            again = _failed_later(one, failure)
            until = min(ended if again is None else again.broke_ns, ended, end)
            _steps(walk, one, began, until, done, failed=not _has_finished(one))
            if again is not None:
                walk.until("detect", again.noticed_ns, limit=end)
                walk.until("evidence", again.judged_ns, limit=end)
    walk.until("decide", decided if told is None else told, limit=end)
    walk.until("stop", stopped, limit=end)
    walk.until("idle", end)


class Break(NamedTuple):
    """The times at which a failure ended a round's work, was noticed, and judged (None = never)."""

    broke_ns: int
    noticed_ns: int
    judged_ns: int | None


def failure_of(one: RoundState, context: RoundContext | None = None) -> Break | None:
    """Return the moments of what ended a round, None if it did not fail.

    Args:
        one: the round.
        context: what is known of other nodes, which goes before what this one knows.
    """
    if context is not None and context.broke_ns is not None:
        noticed = context.broke_ns if context.noticed_ns is None else context.noticed_ns
        return Break(context.broke_ns, noticed, context.judged_ns)
    failure = one.first(e.FailureDetected)
    if failure is None:
        return None
    return Break(_broke(one, failure), failure.t, _judged(one))


def went_on(one: RoundState, noticed_ns: int) -> bool:
    """Return whether ranks of this node began a new step after a failure had been noticed.

    A node goes on after failures of others only: not where there is no other one, nor after its own
    crash, where the last steps of its other ranks are seen after the crash.
    """
    started, own = one.first(e.RoundStarted), one.first(e.FailureDetected)
    if started is None or len(started.ranks) >= started.world_size:
        return False
    if own is not None and own.kind == "crash" and own.t <= noticed_ns:
        return False
    return bool(one.progress) and one.progress[-1].last_ns > noticed_ns


def worked_until(one: RoundState, failure: Break) -> int:
    """Return when the work of a node ended that went on after a failure, as far as is known."""
    last_ns = one.progress[-1].last_ns
    if any(pause.t >= last_ns for pause in one.pauses):
        return last_ns  # the node has seen late what ended it
    again = _failed_later(one, failure)
    moments = (one.time_of(kind) for kind in (e.Decision, e.StopRequested, e.RoundStopped))
    ends = [one.since_ns or again.noticed_ns] if again else [t for t in moments if t is not None]
    return min(ends, default=one.last_ns)


def _failed_later(one: RoundState, failure: Break) -> Break | None:
    """Return what ended the work of a node that had gone on after a failure elsewhere."""
    own = failure_of(one)
    later = own is not None and own.noticed_ns >= one.progress[-1].last_ns > failure.noticed_ns
    return own if later else None


def _has_finished(one: RoundState) -> bool:
    return bool(one.exits) and all(each.exit_code == 0 for each in one.exits)


def limit_of(one: RoundState) -> int:
    """Return how long a hang lasted before it was one: the limit that was passed; 0 of others."""
    failure, verdict = one.first(e.FailureDetected), one.first(e.Verdict)
    if failure is None or verdict is None or failure.kind != "hang" or verdict.limit_s is None:
        return 0
    return round(verdict.limit_s * _NS)


def _start_up(walk: _Walk, one: RoundState, broke: int) -> str:
    """Walk to the first step, or as far as the round came; return what it was at then."""
    ready = one.first(e.TemplateReady)
    spawned = one.time_of(e.WorkersSpawned)
    if ready is not None and spawned is not None and ready.t <= spawned:
        walk.until("spawn", ready.t - ready.import_ns, limit=broke)
        walk.until("import", ready.t, limit=broke)
    stage = "spawn"
    for name, moment, following in (
        ("spawn", spawned, "import"),
        ("import", one.latest("first_line"), "initialise"),
        ("initialise", one.latest("initialized"), "load"),
        ("load", one.latest("first_step"), "work"),
    ):
        if moment is not None:
            walk.until(name, moment, limit=broke)
            stage = following
    return stage


def _steps(
    walk: _Walk, one: RoundState, began: int, broke: int, done: int, *, failed: bool
) -> None:
    """Walk through the steps of a round, which began at ``began``, up to ``broke``."""
    seen = one.progress
    if not seen:
        return
    last = seen[-1]
    known = [(seen[0].first_iteration, began)]
    known += [(each.last_iteration, each.last_ns) for each in seen]
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


def _broke(one: RoundState, failure: e.FailureDetected) -> int:
    """Return when work ended because of a failure: for a hang, the last sign of life."""
    return (failure.t if one.since_ns is None else one.since_ns) - limit_of(one)


def _judged(one: RoundState) -> int | None:
    """Return when what was gathered had been judged; None if nothing was gathered."""
    gathered, verdict = one.time_of(e.EvidenceCollected), one.time_of(e.Verdict)
    decided = one.time_of(e.Decision)
    if gathered is None or verdict is None or decided is None or verdict > decided:
        return gathered
    return max(gathered, verdict)
