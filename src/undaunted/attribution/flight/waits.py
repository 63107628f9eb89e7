"""Who waits in what, and for whom: groups of a job, and operations that have not ended. Pure.

All groups of the job are one picture: edges lead from each rank to the operations it waits in, and
from an operation to the members that have not come to it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_NUMBERS = 64  # of one group that are looked at
GLOO = "gloo"
_FEW = 16  # ranks without a recording, of which one may be in a group of unknown members
_MOST_MEMBERS = 1 << 21  # of all groups together
_SOME_CALL = Call("a collective")  # its entry was overwritten
# Calls that a member may end before all have come.
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter", "send", "recv")


class GroupView(msgspec.Struct, eq=False):
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
        """What texts call the group."""
        if self.description in {"", "undefined"}:
            return f"group {self.name}"
        return f"group {self.name} ({self.description})"


class RecordedJob:
    """All recordings, and the groups they are about."""

    def __init__(self, recordings: Iterable[Recording], world_size: int) -> None:
        self.by_rank = {one.rank: one for one in recordings if 0 <= one.rank < MOST_RANKS}
        self.views: dict[tuple[str, object], GroupView] = {}
        self._space = _MOST_MEMBERS
        self._members: dict[Runs, tuple[tuple[int, ...], frozenset[int]]] = {}
        self._unrecorded: dict[frozenset[int], list[int]] = {}
        self.guessed: set[GroupView] = (
            set()
        )  # their members are the ranks that have called something
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
                    view = self.views[key] = GroupView(group.name, group.description)
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

    def _set_members(self, view: GroupView, members: Runs) -> None:
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

    def unrecorded(self, view: GroupView) -> list[int]:
        """Return the members that have left no recording; if they are not known, it may be any."""
        if view in self.guessed:
            return self.absent if len(self.absent) <= _FEW else []
        found = self._unrecorded.get(view.members)
        if found is None:
            found = self._unrecorded[view.members] = sorted(view.members - self.by_rank.keys())
        return found

    def call(self, rank: int, group: Group, number: int) -> Call | None:
        """Return what a rank has called, None = its entry is gone."""
        place = group.call_at(number)
        calls = self.by_rank[rank].calls
        return calls[place] if 0 <= place < len(calls) else None

    def node(self, rank: int) -> str:
        """Return the node of a rank, "" = not known."""
        one = self.by_rank.get(rank)
        return one.node if one else ""


class Operation(msgspec.Struct, eq=False):
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

    view: GroupView | None
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
        """Name of the process group, "" = none."""
        return self.view.name if self.view else ""

    def seen(self, rank: int) -> Group | None:
        """Return what a rank says of the group."""
        return self.view.seen.get(rank) if self.view else None

    def __str__(self) -> str:
        if self.view is None:
            return str(self.call)
        number = "" if self.number < 0 else f"number {self.number} of "
        return f"{self.call} ({number}{self.view.label})"


def waits_of(job: RecordedJob) -> list[Operation]:
    """Return everything that somebody waits in, with the ranks that have not come to it."""
    found = []
    for view in job.views.values():
        by_number: dict[int, list[int]] = defaultdict(list)
        for rank, group in view.seen.items():
            if group.oldest >= 0:
                by_number[group.oldest].append(rank)
        numbers = sorted(by_number)[:MOST_NUMBERS]
        found += [_collective(job, view, number, by_number[number]) for number in numbers]
    found += _transfers(job)
    recorded = {rank for one in found for rank in one.waiting}
    for rank, one in job.by_rank.items():
        if one.waits is not None and (one.waits.peer >= 0 or rank not in recorded):
            absent = [one.waits.peer] if one.waits.peer in job.world else []
            call, orders = Call(one.waits.name), {rank: 1 << 62}
            found.append(Operation(None, -1, call, waiting=[rank], absent=absent, orders=orders))
    _add_busy(found)
    return found


def _collective(job: RecordedJob, view: GroupView, number: int, waiting: list[int]) -> Operation:
    """Find out who keeps a collective from ending: rules 1 to 4 of the page, one after another."""
    first = view.seen[waiting[0]]
    operation = Operation(view, number, job.call(waiting[0], first, number) or _SOME_CALL)
    operation.waiting = sorted(waiting)
    operation.orders = {rank: view.seen[rank].order for rank in waiting}
    others = {rank: group for rank, group in view.seen.items() if group.enqueued != UNKNOWN}
    operation.absent = sorted(rank for rank, group in others.items() if not group.came_to(number))
    if operation.absent:
        return operation
    operation.some_ended = any(group.ended(number) for group in others.values())
    if operation.some_ended and first.backend == GLOO and not is_one_sided(operation.call):
        operation.left = all(group.enqueued == number for group in others.values())
    if unrecorded := job.unrecorded(view):
        operation.absent = unrecorded
    elif operation.left:
        pass
    elif operation.some_ended and not is_one_sided(operation.call):
        operation.lagging = operation.waiting
    else:
        operation.begun = [rank for rank in waiting if view.seen[rank].started >= number]
        operation.absent = _not_begun(operation)
    return operation


def is_one_sided(call: Call) -> bool:
    """Whether a member may end a call before all have come."""
    return call.name.lstrip("_").startswith(_ONE_SIDED)


def _not_begun(operation: Operation) -> list[int]:
    """Return whose device has not begun what others' devices have."""
    return sorted(set(operation.waiting) - set(operation.begun)) if operation.begun else []


# --- transfers ------------------------------------------------------------------------------------


def _transfers(job: RecordedJob) -> Iterator[Operation]:
    pending: dict[tuple[str, int, int, bool], Transfer] = {}
    pairs: dict[tuple[str, int, int, bool], tuple[int, int]] = {}
    views: dict[tuple[str, int], GroupView] = {
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
        operation = Operation(views[name, rank], -1, Call(text))
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


def _peer(view: GroupView | None, place: int) -> int:
    return view.order[place] if view is not None and 0 <= place < len(view.order) else -1


def _add_busy(operations: Sequence[Operation]) -> None:
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


def failed_in(job: RecordedJob, waits: Sequence[Operation]) -> list[Operation]:
    """Return what may have failed: ranks with nothing pending whose last call others lack.

    Dumps of a job that is well look alike, if they were not made at the same time. A rank without
    a dump lacks any call: it is missed only by ranks that are waited for in `waits`.
    """
    found: dict[tuple[GroupView, int], Operation] = {}
    last: dict[int, tuple[GroupView, Group]] = {}
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
        if group.backend.startswith("nccl") or call is None or is_one_sided(call):
            continue
        operation = found.get((view, number))
        if operation is None:
            operation = found[view, number] = Operation(view, number, call, failed=True)
            others = {one: each for one, each in view.seen.items() if each.enqueued != UNKNOWN}
            operation.absent = sorted(one for one, each in others.items() if each.enqueued < number)
            gone_on = any(each.enqueued > number for each in others.values())  # it ended well
            if not operation.absent and group.backend == GLOO and not gone_on:
                operation.absent = job.unrecorded(view)
        operation.waiting.append(rank)
    failed = [one for one in found.values() if one.absent]
    awaited = _awaited(waits, failed)
    return [
        one for one in failed if one.absent[0] in job.by_rank or not awaited.isdisjoint(one.waiting)
    ]


def _awaited(waits: Sequence[Operation], failed: Sequence[Operation]) -> set[int]:
    """Return the ranks that others wait for, also through what these may have failed in."""
    awaited = {rank for one in waits for rank in one.absent}
    at = {rank: one for one in failed for rank in one.waiting}
    followed: set[Operation] = set()
    todo = list(awaited)
    for rank in todo:  # more are added
        one = at.get(rank)
        if one is not None and one not in followed:
            followed.add(one)
            todo += set(one.absent) - awaited
            awaited.update(one.absent)
    return awaited
