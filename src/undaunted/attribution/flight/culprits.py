"""Finds out from recordings of all ranks who keeps the others waiting. Pure.

All groups of the job are one picture: edges lead from each rank to the operations it waits in, and
from an operation to the members that have not come to it. Whoever is waited for and waits for
nobody is to blame. docs/design/attribution.md has the rules, `findings.CAUSES` their names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.findings import MISMATCH, Finding
from undaunted.attribution.flight.recording import (
    MOST_RANKS,
    UNKNOWN,
    Call,
    Group,
    Recording,
    Runs,
    Transfer,
    ranks_of,
    runs,
)
from undaunted.base.text import count, name_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_MOST_NUMBERS = 64  # of one group that are looked at
MOST_CULPRITS = 256
_FEW = 16  # ranks without a recording, of which one may be in a group of unknown members
_MOST_GROUPS = 1024  # in an analysis
_MOST_MEMBERS = 1 << 21  # of all groups together
_MOST_RANGES = 32  # of ranks in a sentence
_SURE, _LIKELY, _GUESS, _DOUBT = 0.95, 0.7, 0.5, 0.4  # the last one is below `findings.SURE`
_GLOO = "gloo"
_SOME_CALL = Call("a collective")  # its entry was overwritten
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
# Calls that a member may end before all have come.
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter", "send", "recv")


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
    job = _Job(recordings, world_size)
    operations = _operations(job)
    operations += _failed(job, operations)
    culprits = _culprits(job, operations)
    blamed = {one.rank for one in culprits}
    waiting = {rank for one in operations if not one.failed for rank in one.waiting} - blamed
    return Analysis(
        culprits=sorted(culprits, key=lambda one: (-one.confidence, one.rank))[:MOST_CULPRITS],
        missing=job.missing,
        waiting=sorted(waiting),
        groups=[_state(one) for one in operations if not one.failed][:_MOST_GROUPS],
    )


def _culprits(job: _Job, operations: Sequence[_Operation]) -> list[Culprit]:
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


# --- the job --------------------------------------------------------------------------------------


class _View(msgspec.Struct, eq=False):
    """One group as its members see it.

    Attributes:
        name, description: as torch has them.
        order: members by their rank inside the group.
        members: the same as a set.
        seen: what each rank says of it.
    """

    name: str
    description: str
    order: tuple[int, ...] = ()
    members: frozenset[int] = frozenset()
    seen: dict[int, Group] = {}

    @property
    def label(self) -> str:
        if self.description in {"", "undefined"}:
            return f"group {self.name}"
        return f"group {self.name} ({self.description})"


class _Job:
    """All recordings, and the groups they are about."""

    def __init__(self, recordings: Iterable[Recording], world_size: int) -> None:
        self.by_rank = {one.rank: one for one in recordings if 0 <= one.rank < MOST_RANKS}
        self.views: dict[tuple[str, object], _View] = {}
        self._space = _MOST_MEMBERS
        self._members: dict[Runs, tuple[tuple[int, ...], frozenset[int]]] = {}
        self._unrecorded: dict[frozenset[int], list[int]] = {}
        self.guessed: set[_View] = set()  # their members are the ranks that have called something
        self._gather()
        in_groups = {rank for _, members in self._members.values() for rank in members}
        world = in_groups | self.by_rank.keys()
        if world == self.by_rank.keys():  # members are not known: a rank in a gap is missing
            world |= set(range(max(world, default=-1) + 1))
        size = max([world_size, *(one.world_size for one in self.by_rank.values())])
        self.world = world | set(range(min(size, MOST_RANKS)))
        self.missing = sorted(self.world - self.by_rank.keys())
        self._guess_members()
        in_groups = {rank for _, members in self._members.values() for rank in members}
        self.absent = [rank for rank in self.missing if rank in in_groups]

    def _gather(self) -> None:
        # The same name with other members is another group: of a later start, or local.
        for rank, one in self.by_rank.items():
            for group in one.groups:
                key = (group.name, group.members)
                view = self.views.get(key)
                if view is None:
                    view = self.views[key] = _View(group.name, group.description)
                    self._set_members(view, group.members)
                view.description = view.description or group.description
                view.seen[rank] = group
        self._join_unknown()

    def _join_unknown(self) -> None:
        """Give ranks that do not know the members of a group to the group of that name."""
        unknown = {name: view.seen for (name, members), view in self.views.items() if not members}
        for (name, members), view in self.views.items():
            if members and (seen := unknown.get(name)):
                for rank in seen.keys() & view.members:
                    view.seen.setdefault(rank, seen.pop(rank))
        for name, seen in unknown.items():
            if not seen:
                del self.views[name, ()]

    def _guess_members(self) -> None:
        every = runs(tuple(sorted(self.world)))
        for view in self.views.values():
            if not view.order and (view.description == "default_pg" or view.name == "0"):
                self._set_members(view, every)
            if not view.order:
                self.guessed.add(view)
                self._set_members(view, runs(tuple(sorted(view.seen))))

    def _set_members(self, view: _View, members: Runs) -> None:
        """Note the members, if there is space: a dump may name thousands of groups of all ranks."""
        size = sum(max(0, count) for _, count, _ in members)
        if size > self._space:
            return
        self._space -= size
        if members not in self._members:
            order = ranks_of(members)
            known = frozenset(rank for rank in order if 0 <= rank < MOST_RANKS)
            self._members[members] = (order, known)
        view.order, view.members = self._members[members]

    def unrecorded(self, view: _View) -> list[int]:
        """Return the members that have left no recording; if they are not known, it may be any."""
        if view in self.guessed:
            return self.absent if len(self.absent) <= _FEW else []
        found = self._unrecorded.get(view.members)
        if found is None:
            found = self._unrecorded[view.members] = sorted(view.members - self.by_rank.keys())
        return found

    def call(self, rank: int, group: Group, number: int) -> Call | None:
        place = group.call_at(number)
        calls = self.by_rank[rank].calls
        return calls[place] if 0 <= place < len(calls) else None

    def node(self, rank: int) -> str:
        one = self.by_rank.get(rank)
        return one.node if one else ""


class _Operation(msgspec.Struct, eq=False):
    """Something that ranks wait in, and for whom.

    Attributes:
        view: the group, None for a wait that only the main thread shows.
        number: of the collective, -1 = a transfer.
        call: what was called.
        failed: it has ended on those who "wait": with an error, as others never came.
        waiting: ranks that are in it.
        absent: ranks they wait for; empty = not known.
        lagging: ranks whose device has not finished what those of peers have.
        begun: of `waiting`, ranks whose device is known to be in it.
        some_ended: it has ended on some members.
        left: some members have left it, and no dump tells whether with an error (gloo).
        orders: place among all operations of the rank, by waiting rank.
    """

    view: _View | None
    number: int
    call: Call
    failed: bool = False
    waiting: list[int] = []
    absent: list[int] = []
    lagging: list[int] = []
    begun: list[int] = []
    some_ended: bool = False
    left: bool = False
    orders: dict[int, int] = {}

    @property
    def group(self) -> str:
        return self.view.name if self.view else ""

    def seen(self, rank: int) -> Group | None:
        """Return what a rank says of the group."""
        return self.view.seen.get(rank) if self.view else None

    def __str__(self) -> str:
        if self.view is None:
            return str(self.call)
        number = "" if self.number < 0 else f"number {self.number} of "
        return f"{self.call} ({number}{self.view.label})"


def _operations(job: _Job) -> list[_Operation]:
    """Return everything that somebody waits in, with the ranks that have not come to it."""
    found = []
    for view in job.views.values():
        by_number: dict[int, list[int]] = defaultdict(list)
        for rank, group in view.seen.items():
            if group.oldest >= 0:
                by_number[group.oldest].append(rank)
        numbers = sorted(by_number)[:_MOST_NUMBERS]
        found += [_collective(job, view, number, by_number[number]) for number in numbers]
    found += _transfers(job)
    recorded = {rank for one in found for rank in one.waiting}
    for rank, one in job.by_rank.items():
        if one.waits is not None and (one.waits.peer >= 0 or rank not in recorded):
            absent = [one.waits.peer] if one.waits.peer in job.world else []
            call, orders = Call(one.waits.name), {rank: 1 << 62}
            found.append(_Operation(None, -1, call, waiting=[rank], absent=absent, orders=orders))
    _add_busy(found)
    return found


def _collective(job: _Job, view: _View, number: int, waiting: list[int]) -> _Operation:
    """Find out who keeps a collective from ending: rules 1 to 4 of the page, one after another."""
    first = view.seen[waiting[0]]
    operation = _Operation(view, number, job.call(waiting[0], first, number) or _SOME_CALL)
    operation.waiting = sorted(waiting)
    operation.orders = {rank: view.seen[rank].order for rank in waiting}
    others = {rank: group for rank, group in view.seen.items() if group.enqueued != UNKNOWN}
    operation.absent = sorted(rank for rank, group in others.items() if not group.came_to(number))
    if operation.absent:
        return operation
    operation.some_ended = any(group.ended(number) for group in others.values())
    if operation.some_ended and first.backend == _GLOO and not _is_one_sided(operation.call):
        operation.left = all(group.enqueued == number for group in others.values())
    if unrecorded := job.unrecorded(view):
        operation.absent = unrecorded
    elif operation.left:
        pass
    elif operation.some_ended and not _is_one_sided(operation.call):
        operation.lagging = operation.waiting
    else:
        operation.begun = [rank for rank in waiting if view.seen[rank].started >= number]
        operation.absent = _not_begun(operation)
    return operation


def _is_one_sided(call: Call) -> bool:
    return call.name.lstrip("_").startswith(_ONE_SIDED)


def _not_begun(operation: _Operation) -> list[int]:
    """Return whose device has not begun what others' devices have."""
    return sorted(set(operation.waiting) - set(operation.begun)) if operation.begun else []


# --- transfers ------------------------------------------------------------------------------------


def _transfers(job: _Job) -> Iterator[_Operation]:
    pending: dict[tuple[str, int, int, bool], Transfer] = {}
    pairs: dict[tuple[str, int, int, bool], tuple[int, int]] = {}
    views: dict[tuple[str, int], _View] = {
        (view.name, rank): view for view in job.views.values() for rank in view.seen
    }
    for rank, one in job.by_rank.items():
        for transfer in one.transfers:
            view = views.get((transfer.group, rank))
            peer = _peer(view, transfer.peer)
            if peer >= 0:
                pending.setdefault((transfer.group, rank, peer, transfer.sends), transfer)
        for pair in one.pairs:
            peer = _peer(views.get((pair.group, rank)), pair.peer)
            pairs[pair.group, rank, peer, pair.sends] = (pair.called, pair.ended)
    for (name, rank, peer, sends), transfer in pending.items():
        back = (name, peer, rank, not sends)
        mine, theirs = pairs.get((name, rank, peer, sends)), pairs.get(back)
        behind = theirs[1] - mine[1] if mine and theirs else 0  # messages it has not ended alone
        if behind == 0 and back in pending and not sends:
            continue  # the sender reports it
        text = f"send to rank {peer}" if sends else f"recv from rank {peer}"
        operation = _Operation(views[name, rank], -1, Call(text))
        operation.waiting = [rank]
        operation.orders = {rank: transfer.order}
        operation.begun = [rank] if transfer.started else []
        if behind > 0:
            operation.lagging = [rank]
        elif back not in pending or behind < 0:
            operation.absent = [peer]
        else:
            operation.waiting = sorted((rank, peer))
            operation.orders[peer] = pending[back].order
            operation.begun += [peer] if pending[back].started else []
            operation.absent = _not_begun(operation)
        yield operation


def _peer(view: _View | None, place: int) -> int:
    return view.order[place] if view is not None and 0 <= place < len(view.order) else -1


def _add_busy(operations: Sequence[_Operation]) -> None:
    """Where all have come to an operation, look who has something older on its device.

    Devices work through operations in order: one that is held up elsewhere holds up this one.
    """
    oldest: dict[int, int] = {}
    for one in operations:
        for rank in one.waiting:
            if one.view is not None:
                oldest[rank] = min(one.orders.get(rank, 0), oldest.get(rank, 1 << 62))
    for one in operations:
        if one.absent or one.lagging or one.view is None:
            continue
        if len(one.begun) < len(one.waiting):
            one.absent = sorted(
                rank for rank, order in one.orders.items() if oldest.get(rank, order) < order
            )
        if not one.absent and one.some_ended and not one.left:
            one.lagging = one.waiting


# --- arguments that do not match ------------------------------------------------------------------


def _mismatches(job: _Job, called: Iterable[tuple[_View | None, int]]) -> list[Culprit]:
    """Blame members that called something else than most others did at one of these numbers."""
    numbers: dict[_View, list[int]] = {}
    for view, number in called:
        if view is not None and number >= 0:
            numbers.setdefault(view, []).append(number)
    found = [_mismatch(job, view, each[0], max(each)) for view, each in numbers.items()]
    # One that called the wrong thing in one group is out of step in others.
    first = min(filter(None, found), key=lambda all_of: min(one.t for one in all_of), default=None)
    return first or []


def _mismatch(job: _Job, view: _View, first: int, last: int) -> list[Culprit]:
    for number in range(first, min(last, first + _MOST_NUMBERS) + 1):
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
    job: _Job, view: _View, number: int, kinds: Counter[tuple[str, str, int]]
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
    job: _Job, view: _View, number: int, calls: Mapping[int, Call], rank: int, *, certain: bool
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


# --- who is waited for and waits for nobody -------------------------------------------------------


def _failed(job: _Job, waits: Sequence[_Operation]) -> list[_Operation]:
    """Return what may have failed: ranks with nothing pending whose last call others lack.

    Dumps of a job that is well look alike, if they were not made at the same time. A rank without
    a dump lacks any call: it is missed only by ranks that are waited for in `waits`.
    """
    found: dict[tuple[_View, int], _Operation] = {}
    last: dict[int, tuple[_View, Group]] = {}
    pending = {
        rank for view in job.views.values() for rank, one in view.seen.items() if one.oldest >= 0
    }
    for view in job.views.values():
        for rank in set(view.seen) - pending:
            group = view.seen[rank]
            if group.enqueued >= 0 and (rank not in last or last[rank][1].t < group.t):
                last[rank] = (view, group)
    for rank, (view, group) in last.items():
        number = group.enqueued
        call = job.call(rank, group, number)
        if group.backend.startswith("nccl") or call is None or _is_one_sided(call):
            continue
        operation = found.get((view, number))
        if operation is None:
            operation = found[view, number] = _Operation(view, number, call, failed=True)
            others = {one: each for one, each in view.seen.items() if each.enqueued != UNKNOWN}
            operation.absent = sorted(one for one, each in others.items() if each.enqueued < number)
            gone_on = any(each.enqueued > number for each in others.values())  # it ended well
            if not operation.absent and group.backend == _GLOO and not gone_on:
                operation.absent = job.unrecorded(view)
        operation.waiting.append(rank)
    failed = [one for one in found.values() if one.absent]
    awaited = _awaited(waits, failed)
    return [
        one for one in failed if one.absent[0] in job.by_rank or not awaited.isdisjoint(one.waiting)
    ]


def _awaited(waits: Sequence[_Operation], failed: Sequence[_Operation]) -> set[int]:
    """Return the ranks that others wait for, also through what these may have failed in."""
    awaited = {rank for one in waits for rank in one.absent}
    at = {rank: one for one in failed for rank in one.waiting}
    followed: set[_Operation] = set()
    todo = list(awaited)
    for rank in todo:  # more are added
        one = at.get(rank)
        if one is not None and one not in followed:
            followed.add(one)
            todo += set(one.absent) - awaited
            awaited.update(one.absent)
    return awaited


def _last(job: _Job, *, failed_only: bool) -> list[tuple[_View, int]]:
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
                if one.enqueued >= 0 and (one.backend == _GLOO or not failed_only)
            }
        )
    ]


# --- who came too late ----------------------------------------------------------------------------


class _Lateness(msgspec.Struct, frozen=True):
    """A rank came to an operation when the timeout of the others had passed, in seconds."""

    operation: _Operation
    by: float
    timeout: float


def _late(job: _Job) -> list[Culprit]:
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


def _late_in(job: _Job, view: _View) -> dict[int, _Lateness]:
    called = {
        rank: group
        for rank, group in view.seen.items()
        if group.backend == _GLOO and group.enqueued >= 0 and group.t > 0
    }
    if not called:
        return {}
    first = min(called, key=lambda rank: (-called[rank].enqueued, called[rank].t))
    number, t, timeout = called[first].enqueued, called[first].t, called[first].timeout
    call = job.call(first, called[first], number)
    if not timeout > 0 or call is None or _is_one_sided(call):
        return {}
    late = {rank: group.t - t for rank, group in called.items() if group.t - t >= timeout}
    # The clock of a rank that has not been away may be wrong.
    for rank in list(late):
        pause = job.by_rank[rank].pause
        if pause is not None and pause.seconds < timeout / 2:
            del late[rank]
    operation = _Operation(view, number, call, waiting=sorted(called.keys() - late.keys()))
    return {rank: _Lateness(operation, by, timeout) for rank, by in late.items()}


def _kept_by(job: _Job, rank: int, ends: Mapping[tuple[str, int], Sequence[int]]) -> int:
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
    job: _Job, rank: int, late_rank: int, late: Mapping[int, _Lateness], *, certain: bool
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


def _ends(job: _Job, operations: Sequence[_Operation]) -> list[Culprit]:
    """Follow edges to their ends and blame the ranks there."""
    waits: dict[int, list[_Operation]] = defaultdict(list)
    for one in operations:
        for rank in one.waiting:
            waits[rank].append(one)
    lagging = _lagging(waits, operations)
    found = [_lags(job, rank, operation) for rank, operation in sorted(lagging.items())]
    awaited_in: dict[int, list[_Operation]] = defaultdict(list)
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


def _stuck(job: _Job, operations: Sequence[_Operation]) -> list[Culprit]:
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


def _ends_of(operations: Sequence[_Operation], lagging: Iterable[int]) -> list[list[int]]:
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


def _idle(job: _Job, operations: Sequence[_Operation]) -> list[Culprit]:
    """Blame the few that wait for nobody where others wait for a peer that is not known."""
    waiting = {rank for one in operations for rank in one.waiting}
    idle = sorted(set(job.by_rank) - waiting)
    if len(idle) * 2 > len(job.by_rank) or not any(one.view is None for one in operations):
        return []
    text = f"{_named(sorted(waiting))} wait for others, and it has nothing pending"
    return [Culprit(rank, job.node(rank), "host_lag", "", text, _LIKELY) for rank in idle]


def _lagging(
    waits: Mapping[int, list[_Operation]], operations: Sequence[_Operation]
) -> dict[int, _Operation]:
    """Return ranks whose device holds up the rest: nothing older of theirs waits for somebody."""
    found: dict[int, _Operation] = {}
    for one in operations:
        idle = set(one.absent).intersection(one.waiting) if one.begun else ()
        for rank in [*one.lagging, *idle]:
            order = one.orders.get(rank, 0)
            older = [each for each in waits[rank] if each.orders.get(rank, order) < order]
            held_up = older if rank in idle else [each for each in older if each.absent]
            if not held_up and order <= found.get(rank, one).orders.get(rank, order):
                found[rank] = one
    return found


def _lags(job: _Job, rank: int, operation: _Operation, *, certain: bool = True) -> Culprit:
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
    job: _Job, rank: int, operations: Sequence[_Operation], own: Sequence[_Operation]
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


def _may_be_older(job: _Job, rank: int, operation: _Operation) -> bool:
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
    return (group is not None and group.backend == _GLOO and group.enqueued < before) and any(
        (call := job.call(other, one, before)) is not None and not _is_one_sided(call)
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
    job: _Job,
    ring: Sequence[int],
    waits: Mapping[int, list[_Operation]],
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


def _is_one_way(job: _Job, operation: _Operation) -> bool:
    """Whether a transfer is pending at one end alone, and the other may have ended."""
    known = all(job.by_rank[rank].pairs for rank in operation.waiting)
    return operation.view is not None and operation.number < 0 and not known


def _newly_ordered(job: _Job, ranks: Iterable[int]) -> list[int]:
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


def _state(operation: _Operation) -> GroupState:
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
