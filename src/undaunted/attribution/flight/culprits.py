"""Finds out from recordings of all ranks who keeps the others waiting. Pure.

Edges lead from ranks to operations and on to ranks, see `waits`. Whoever is waited for and waits
for nobody is to blame. docs/design/attribution.md has the rules, `findings.CAUSES` their names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.findings import MISMATCH, Finding
from undaunted.attribution.flight.waits import (
    GLOO,
    MOST_NUMBERS,
    GroupView,
    Operation,
    RecordedJob,
    failed_in,
    is_one_sided,
    waits_of,
)
from undaunted.base.text import count, name_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from undaunted.attribution.flight.recording import Call, Group, Recording

MOST_CULPRITS = 256
_MOST_GROUPS = 1024  # in an analysis
_MOST_RANGES = 32  # of ranks in a sentence
_SURE, _LIKELY, _GUESS, _DOUBT = 0.95, 0.7, 0.5, 0.4  # the last one is below `findings.SURE`
# Calls of which each member gives as much as any other.
_EVEN = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
)


def _named(ranks: Collection[int]) -> str:
    return name_ranks(ranks, _MOST_RANGES)


class Culprit(msgspec.Struct, frozen=True):
    """A rank to blame.

    Attributes:
        rank, node: who; node "" = not known.
        cause: its name in `findings.CAUSES`.
        group: name of the process group where it shows, "" = none.
        evidence: a sentence.
        confidence: 0 to 1.
        t: when it was last seen to call a collective; 0 = not known.
    """

    rank: int
    node: str
    cause: str
    group: str
    evidence: str
    confidence: float = _SURE
    t: float = 0.0


class GroupState(msgspec.Struct, frozen=True):
    """A group in which somebody waits.

    Attributes:
        name, description: as torch has them.
        size: number of members; of gloo, the ones that have called something.
        number: of the operation that is waited in; transfers have none: -1.
        operation, dtype, shape: what was called: ``all_reduce``, ``Float``, ``[4]``.
        waiting: ranks that wait in it.
        absent: ranks that have not come to it; they, or others they wait for, are the cause.
    """

    name: str
    description: str
    size: int
    number: int
    operation: str
    dtype: str
    shape: str
    waiting: list[int]
    absent: list[int]


class Analysis(msgspec.Struct, frozen=True):
    """The result of recordings.

    Attributes:
        culprits: the surest first; empty = nobody waits, or it cannot be known for whom.
        missing: ranks without a recording.
        waiting: ranks that wait for others: not to blame.
        groups: in which somebody waits.
    """

    culprits: list[Culprit]
    missing: list[int]
    waiting: list[int]
    groups: list[GroupState]

    def findings(self) -> list[Finding]:
        """Return the same as findings: alike culprits of a node are one."""
        alike: dict[tuple[object, ...], list[Culprit]] = defaultdict(list)
        for one in self.culprits:
            alike[one.node, one.cause, one.confidence, one.evidence].append(one)
        return [_finding(culprits) for culprits in alike.values()]


def _finding(alike: Sequence[Culprit]) -> Finding:
    one, ranks = alike[0], [each.rank for each in alike]
    which = "recording" if len(ranks) == 1 else "recordings"
    return Finding(
        cause=one.cause,
        ranks=tuple(ranks),
        nodes=(one.node,) if one.node else (),
        t=one.t,
        confidence=one.confidence,
        quote=one.evidence,
        source="recordings of all ranks"
        if one.cause == "no_dump"
        else f"{which} of {_named(ranks)}",
    )


def analyse(recordings: Sequence[Recording], world_size: int = 0) -> Analysis:
    """Find the culprits.

    Args:
        recordings: one for each rank that has left one.
        world_size: number of ranks of the job, if known; else what recordings say.
    """
    job = RecordedJob(recordings, world_size)
    operations = waits_of(job)
    operations += failed_in(job, operations)
    culprits = _culprits(job, operations)
    blamed = {one.rank for one in culprits}
    waiting = {rank for one in operations if not one.failed for rank in one.waiting} - blamed
    return Analysis(
        culprits=sorted(culprits, key=lambda one: (-one.confidence, one.rank))[:MOST_CULPRITS],
        missing=job.missing,
        waiting=sorted(waiting),
        groups=[_state(one) for one in operations if not one.failed][:_MOST_GROUPS],
    )


def _culprits(job: RecordedJob, operations: Sequence[Operation]) -> list[Culprit]:
    found = (
        _mismatches(job, [(one.view, one.number) for one in operations])
        or _late(job)
        or _ends(job, operations)
        # operations that do not match may have failed everywhere
        or _mismatches(job, _last(job, failed_only=not operations))
        or _idle(job, operations)
    )
    if found or all(one.failed for one in operations):
        return found
    return _without_dump(job.absent, "others wait, and it left no recording")


# --- arguments that do not match ------------------------------------------------------------------


def _mismatches(job: RecordedJob, called: Iterable[tuple[GroupView | None, int]]) -> list[Culprit]:
    """Blame members that called something else than most others did at one of these numbers."""
    numbers: dict[GroupView, list[int]] = {}
    for view, number in called:
        if view is not None and number >= 0:
            numbers.setdefault(view, []).append(number)
    found = [_mismatch(job, view, each[0], max(each)) for view, each in numbers.items()]
    # One that called the wrong thing in one group is out of step in others.
    first = min(filter(None, found), key=lambda all_of: min(one.t for one in all_of), default=None)
    return first or []


def _mismatch(job: RecordedJob, view: GroupView, first: int, last: int) -> list[Culprit]:
    for number in range(first, min(last, first + MOST_NUMBERS) + 1):
        calls = {
            rank: call
            for rank, group in view.seen.items()
            if group.enqueued >= number and (call := job.call(rank, group, number)) is not None
        }
        kinds = Counter(_kind(call) for call in calls.values())
        if len(kinds) > 1:
            usual = _usual(job, view, number, kinds)
            blamed = [rank for rank, call in calls.items() if _kind(call) != usual]
            if usual is None:
                blamed = _newly_ordered(job, blamed) or blamed
            certain = usual is not None or len(blamed) < len(calls)
            return [
                _mismatched(job, view, number, calls, rank, certain=certain)
                for rank in sorted(blamed)
            ]
    return []


def _kind(call: Call) -> tuple[str, str, int]:
    """Return what must be equal."""
    name = call.name.lstrip("_")
    even = name.startswith(_EVEN)
    return name, call.dtype if even else "", call.elements if even else 0


def _usual(
    job: RecordedJob, view: GroupView, number: int, kinds: Counter[tuple[str, str, int]]
) -> tuple[str, str, int] | None:
    """Return what most called; in a tie, what groups of the same description did."""
    (most, votes), (_, next_votes) = kinds.most_common(2)
    if votes > next_votes:
        return most
    siblings: Counter[tuple[str, str, int]] = Counter()
    for other in job.views.values():
        if other is not view and other.description == view.description:
            for rank, group in other.seen.items():
                call = job.call(rank, group, number) if group.enqueued >= number else None
                if call is not None and _kind(call) in kinds:
                    siblings[_kind(call)] += 1
    ranked = siblings.most_common(2)
    if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]):
        return ranked[0][0]
    return None


def _mismatched(
    job: RecordedJob,
    view: GroupView,
    number: int,
    calls: Mapping[int, Call],
    rank: int,
    *,
    certain: bool,
) -> Culprit:
    own = calls[rank]
    most, _ = Counter(call for call in calls.values() if _kind(call) != _kind(own)).most_common(1)[
        0
    ]
    others = [one for one, call in calls.items() if call == most]
    return Culprit(
        rank=rank,
        node=job.node(rank),
        cause=MISMATCH,
        group=view.name,
        evidence=f"called {own} where {_named(others)} called {most} "
        f"(number {number} of {view.label}); their calls part there or earlier",
        confidence=_SURE if certain else _GUESS,
        t=view.seen[rank].t,
    )


def _last(job: RecordedJob, *, failed_only: bool) -> list[tuple[GroupView, int]]:
    """Return the number of the last collective of each group, as each of its members has it.

    ``failed_only``: of gloo alone, of which calls that do not match have failed.
    """
    return [
        (view, number)
        for view in job.views.values()
        for number in sorted(
            {
                one.enqueued
                for one in view.seen.values()
                if one.enqueued >= 0 and (one.backend == GLOO or not failed_only)
            }
        )
    ]


# --- who came too late ----------------------------------------------------------------------------


class _Lateness(msgspec.Struct, frozen=True):
    """A rank came to an operation when the timeout of the others had passed, in seconds."""

    operation: Operation
    by: float
    timeout: float


def _late(job: RecordedJob) -> list[Culprit]:
    """Blame who came to a collective of gloo too late: it had failed on the others by then.

    A rank that was late as it waited for another is a victim too: its pause begins with the very
    call with which that of the other ends.
    """
    late: dict[int, _Lateness] = {}
    for view in job.views.values():
        late.update(_late_in(job, view))
    ends: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, one in job.by_rank.items():
        if late and one.pause is not None:
            ends[one.pause.after].append(rank)
    roots: dict[int, int] = {}
    for rank in sorted(late):
        root, seen = rank, {rank}
        while (cause := _kept_by(job, root, ends)) not in {-1, *seen}:
            root = cause
            seen.add(root)
        roots.setdefault(root, rank)
    certain = len(roots) == 1
    return [
        _too_late(job, rank, victim, late, certain=certain)
        for rank, victim in sorted(roots.items())[:MOST_CULPRITS]
    ]


def _late_in(job: RecordedJob, view: GroupView) -> dict[int, _Lateness]:
    called = {
        rank: group
        for rank, group in view.seen.items()
        if group.backend == GLOO and group.enqueued >= 0 and group.t > 0
    }
    if not called:
        return {}
    first = min(called, key=lambda rank: (-called[rank].enqueued, called[rank].t))
    number, t, timeout = called[first].enqueued, called[first].t, called[first].timeout
    call = job.call(first, called[first], number)
    if not timeout > 0 or call is None or is_one_sided(call):
        return {}
    late = {rank: group.t - t for rank, group in called.items() if group.t - t >= timeout}
    # The clock of a rank that has not been away may be wrong.
    for rank in list(late):
        pause = job.by_rank[rank].pause
        if pause is not None and pause.seconds < timeout / 2:
            del late[rank]
    operation = Operation(view, number, call, waiting=sorted(called.keys() - late.keys()))
    return {rank: _Lateness(operation, by, timeout) for rank, by in late.items()}


def _kept_by(job: RecordedJob, rank: int, ends: Mapping[tuple[str, int], Sequence[int]]) -> int:
    """Return the rank that another has waited for in its pause, -1 = none."""
    own = job.by_rank[rank].pause
    if own is None:
        return -1
    groups = {(group.name, group.members) for group in job.by_rank[rank].groups}
    for other in ends.get(own.before, ()):
        theirs = job.by_rank[other].pause
        if other != rank and theirs is not None and theirs.seconds >= own.seconds / 2:
            both = groups.intersection((one.name, one.members) for one in job.by_rank[other].groups)
            if any(name == own.before[0] for name, _ in both):
                return other
    return -1


def _too_late(
    job: RecordedJob, rank: int, late_rank: int, late: Mapping[int, _Lateness], *, certain: bool
) -> Culprit:
    one = late.get(rank) or late[late_rank]
    it = "it" if rank in late else f"{_named([late_rank])}, which waited for it,"
    group = one.operation.seen(rank)
    return Culprit(
        rank=rank,
        node=job.node(rank),
        cause="host_lag",
        group=one.operation.group,
        evidence=f"{it} came to {one.operation} {one.by:.1f} s after "
        f"{_named(one.operation.waiting)}, on which it had failed after {one.timeout:g} s",
        confidence=_LIKELY if certain else _DOUBT,
        t=group.t if group else 0.0,
    )


# --- who is waited for and waits for nobody -------------------------------------------------------


def _ends(job: RecordedJob, operations: Sequence[Operation]) -> list[Culprit]:
    """Follow edges to their ends and blame the ranks there."""
    waits: dict[int, list[Operation]] = defaultdict(list)
    for one in operations:
        for rank in one.waiting:
            waits[rank].append(one)
    lagging = _lagging(waits, operations)
    found = [_lags(job, rank, operation) for rank, operation in sorted(lagging.items())]
    awaited_in: dict[int, list[Operation]] = defaultdict(list)
    for one in operations:
        for rank in one.absent:
            awaited_in[rank].append(one)
    for ranks in _ends_of(operations, lagging):
        if len(found) >= MOST_CULPRITS:
            break
        if len(ranks) > 1:
            found += _ring(job, ranks, waits)
            continue
        rank = ranks[0]
        awaited = [one for one in awaited_in[rank] if one.waiting != [rank]]
        if awaited and rank not in lagging:
            mine = [one for one in waits[rank] if not one.failed]
            found.append(_waited_for(job, rank, awaited, mine))
    if any(one.cause == "no_dump" for one in found):
        # What some of the others are waited for may not show: they may have ended their part.
        named = {one.rank for one in found}
        more = [rank for rank in job.absent if rank not in named]
        found += _without_dump(more, "it left no recording either")
    return found or _stuck(job, operations)


def _without_dump(ranks: Sequence[int], evidence: str) -> list[Culprit]:
    return [Culprit(rank, "", "no_dump", "", evidence, _GUESS) for rank in ranks[:MOST_CULPRITS]]


def _stuck(job: RecordedJob, operations: Sequence[Operation]) -> list[Culprit]:
    """Name the few that are in an operation which nobody is missing in: one of them, or a link."""
    found: dict[int, Culprit] = {}
    for one in operations:
        few = len(one.waiting) * 2 <= len(job.by_rank)
        if one.view is None or one.absent or one.lagging or one.left or not few:
            continue
        for rank in one.waiting:
            text = f"{_named(one.waiting)} are in {one}, and nobody is missing: one of them"
            found[rank] = Culprit(
                rank, job.node(rank), "device_lag", one.group, f"{text}, or a link", _GUESS
            )
    return list(found.values())


def _ends_of(operations: Sequence[Operation], lagging: Iterable[int]) -> list[list[int]]:
    """Return the ranks, or circles of ranks, that wait for nobody else.

    An operation is a node as well, with a negative number: if nobody is known to be missing in it,
    it is where the search ends, and no rank is to blame for it.
    """
    edges: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(operations):
        node = -1 - place
        edges[node] = one.absent
        # Who has called it and is missing in it is held up by something else.
        for rank in set(one.waiting).difference(one.absent, lagging):
            edges[rank].append(node)
    parts = [[node for node in part if node >= 0] for part in _terminal(edges)]
    return sorted(sorted(part) for part in parts if part)


def _idle(job: RecordedJob, operations: Sequence[Operation]) -> list[Culprit]:
    """Blame the few that wait for nobody where others wait for a peer that is not known."""
    waiting = {rank for one in operations for rank in one.waiting}
    idle = sorted(set(job.by_rank) - waiting)
    if len(idle) * 2 > len(job.by_rank) or not any(one.view is None for one in operations):
        return []
    text = f"{_named(sorted(waiting))} wait for others, and it has nothing pending"
    return [Culprit(rank, job.node(rank), "host_lag", "", text, _LIKELY) for rank in idle]


def _lagging(
    waits: Mapping[int, list[Operation]], operations: Sequence[Operation]
) -> dict[int, Operation]:
    """Return ranks whose device holds up the rest: nothing older of theirs waits for somebody."""
    found: dict[int, Operation] = {}
    for one in operations:
        idle = set(one.absent).intersection(one.waiting) if one.begun else ()
        for rank in [*one.lagging, *idle]:
            order = one.orders.get(rank, 0)
            older = [each for each in waits[rank] if each.orders.get(rank, order) < order]
            held_up = older if rank in idle else [each for each in older if each.absent]
            if not held_up and order <= found.get(rank, one).orders.get(rank, order):
                found[rank] = one
    return found


def _lags(job: RecordedJob, rank: int, operation: Operation, *, certain: bool = True) -> Culprit:
    group = operation.seen(rank)
    later = group.enqueued - operation.number if group and operation.number >= 0 else 0
    more = f"; {count(later, 'later call')} {'is' if later == 1 else 'are'} queued behind it"
    return Culprit(
        rank=rank,
        node=job.node(rank),
        cause="device_lag",
        group=operation.group,
        evidence=f"peers have {'begun' if operation.begun else 'finished'} {operation}, its device "
        f"has not{more if later > 0 else ''}",
        confidence=_SURE if certain else _GUESS,
        t=group.t if group else 0.0,
    )


def _waited_for(
    job: RecordedJob, rank: int, operations: Sequence[Operation], own: Sequence[Operation]
) -> Culprit:
    """Blame a rank that `operations` wait for; it waits in its `own` for nobody."""
    foremost = max(operations, key=lambda one: (not one.failed, len(one.waiting)))
    group = foremost.seen(rank)
    others = [one for one in foremost.waiting if one != rank]
    lead = f"{_named(others)} {'waits' if len(others) == 1 else 'wait'} in {foremost}"
    if foremost.failed:
        lead = f"{foremost} failed on {_named(others)}"
    if rank not in job.by_rank:
        cause, text = "no_dump", "it left no recording"
    elif own:
        cause, text = "device_lag", f"its device has not come to {own[0]}, which it has called"
    elif group is None or foremost.number < 0 or group.enqueued >= foremost.number:
        cause, text = "host_lag", "it has nothing pending"
    else:
        last = f"its last was number {group.enqueued}" if group.enqueued > 0 else "it called none"
        cause, text = "host_lag", f"{last}{_at(group.t)}, and it has nothing pending"
    confidence = _LIKELY if foremost.failed else _SURE
    if rank not in job.by_rank and foremost.view in job.guessed:
        confidence = _GUESS
    elif rank in job.by_rank and _may_be_older(job, rank, foremost):
        confidence = _DOUBT
        text += ", or its dump is older than theirs"
    return Culprit(
        rank=rank,
        node=job.node(rank),
        cause=cause,
        group=foremost.group,
        evidence=f"{lead}; {text}",
        confidence=confidence,
        t=group.t if group else 0.0,
    )


def _may_be_older(job: RecordedJob, rank: int, operation: Operation) -> bool:
    """Whether the dump of a rank may be from before it came to an operation of others."""
    dumped, group = job.by_rank[rank].dumped, operation.seen(rank)
    others = {one: seen for one in operation.waiting if (seen := operation.seen(one)) is not None}
    if operation.failed:
        return not any(
            _was_away(dumped, one, job.by_rank[other].dumped) for other, one in others.items()
        )
    if 0 < dumped < min((one.t for one in others.values()), default=0.0):
        return True
    # They have left the one before it, which needs all: they failed, or it has called it since.
    before = operation.number - 1
    return (group is not None and group.backend == GLOO and group.enqueued < before) and any(
        (call := job.call(other, one, before)) is not None and not is_one_sided(call)
        for other, one in others.items()
    )


def _was_away(dumped: float, other: Group, others_dumped: float) -> bool:
    """Whether a rank had not come to the last call of another when that had failed."""
    away = dumped - other.t
    if not (dumped > 0 and away > 0):
        return False
    # One dump soon after the other: it has hardly come to it in between.
    return away >= other.timeout > 0 or 0 < others_dumped <= dumped + away / 10


def _at(t: float) -> str:
    if not 0 < t < 1e11:
        return ""
    return f", called at {datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _ring(
    job: RecordedJob,
    ring: Sequence[int],
    waits: Mapping[int, list[Operation]],
) -> list[Culprit]:
    """Blame who is in another operation than most, in a circle of ranks that wait."""
    inside = set(ring)
    at = {
        rank: min(
            (one for one in waits[rank] if inside & set(one.absent)),
            key=lambda one: one.orders.get(rank, 0),
        )
        for rank in ring
    }
    blamed = _newly_ordered(job, ring)
    certain = bool(blamed)
    if not blamed and (one_way := [rank for rank in ring if _is_one_way(job, at[rank])]):
        return [_lags(job, rank, at[rank], certain=False) for rank in one_way]
    if not blamed:
        sizes = {rank: len(one.waiting) for rank, one in at.items()}
        blamed = [rank for rank in ring if sizes[rank] == min(sizes.values())]
        certain = len(blamed) < len(ring)
    found = []
    for rank in sorted(blamed):
        own = at[rank]
        others = [one for one in sorted(inside & set(own.absent)) if at[one] is not own]
        theirs = ""
        if others:
            theirs = f", which {'waits' if len(others) == 1 else 'wait'} in {at[others[0]]}"
        found.append(
            Culprit(
                rank=rank,
                node=job.node(rank),
                cause=MISMATCH,
                group=own.group,
                evidence=f"waits in {own} for {_named(others or ring)}"
                f"{theirs}: not all call in the same order",
                confidence=_LIKELY if certain else _GUESS,
            )
        )
    return found


def _is_one_way(job: RecordedJob, operation: Operation) -> bool:
    """Whether a transfer is pending at one end alone, and the other may have ended."""
    known = all(job.by_rank[rank].pairs for rank in operation.waiting)
    return operation.view is not None and operation.number < 0 and not known


def _newly_ordered(job: RecordedJob, ranks: Iterable[int]) -> list[int]:
    """Return those that called in an order that they never did before, if not all did."""
    ranks = list(ranks)
    found = [rank for rank in ranks if job.by_rank[rank].strange >= 0]
    return found if len(found) < len(ranks) else []


def _terminal(edges: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected parts of a graph that no edge leaves (Kosaraju)."""
    back: dict[int, list[int]] = defaultdict(list)
    for node, others in edges.items():
        for other in others:
            back[other].append(node)
    part: dict[int, int] = {}
    found = []
    for root in reversed(_by_end(back, edges.keys() | back.keys())):
        if root in part:
            continue
        part[root] = root
        nodes = [root]
        leaves = False
        for node in nodes:  # more are added
            for other in edges.get(node, ()):
                if other not in part:
                    part[other] = root
                    nodes.append(other)
                leaves = leaves or part[other] != root
        if not leaves:
            found.append(nodes)
    return found


def _by_end(edges: Mapping[int, Sequence[int]], nodes: Iterable[int]) -> list[int]:
    """Return nodes in the order in which a search in depth leaves them."""
    seen: set[int] = set()
    left = []
    for root in nodes:
        todo = [] if root in seen else [(root, iter(edges.get(root, ())))]
        seen.add(root)
        while todo:
            node, rest = todo[-1]
            following = next((one for one in rest if one not in seen), None)
            if following is None:
                left.append(node)
                todo.pop()
            else:
                seen.add(following)
                todo.append((following, iter(edges.get(following, ()))))
    return left


def _state(operation: Operation) -> GroupState:
    view = operation.view
    return GroupState(
        name=operation.group,
        description=view.description if view else "",
        size=len(view.members) if view else 2,
        number=operation.number,
        operation=operation.call.name,
        dtype=operation.call.dtype,
        shape=operation.call.shape,
        waiting=operation.waiting,
        absent=operation.absent,
    )
