"""Rank assignments: the rank of each process after a fault, and which ranks call the function.

Most shift ranks, fill gaps or limit how many ranks are active. A `Tree` is for machines with
an order: racks, nodes, and reserves among them. Ranks learn each other's keys from the wrapper, or
exchange them over a store.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import itertools
import json
import logging
import warnings
from bisect import bisect_left
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.compose import Compose
from undaunted.inprocess.exception import BarrierTimeout, RestartError
from undaunted.inprocess.state import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from undaunted.inprocess.state import State

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "ShiftRanks",
    "Tree",
]

TIMEOUT = timedelta(seconds=60)
_KEYS_AT_ONCE = 4096
_NEEDED = ("add", "set", "multi_get", "wait")  # methods of a store
_FOR_JOINED = "inprocess_tree_keys"  # key in the store: what a process that joins has missed

_logger = logging.getLogger("undaunted")


class RankDiscarded(RestartError):  # noqa: N818 - the name users know
    """The rank assignment has left this rank out."""


@dataclasses.dataclass
class RankAssignmentCtx:
    """The argument of a rank assignment, which changes it and returns it.

    Every rank runs the assignment for itself. Only ``state`` differs between ranks, and the results
    of all ranks must fit each other.

    Attributes:
        state: of this rank, with rank and sizes of the iteration before.
        store: a store of torch, for messages between ranks; None = there is none.
        terminated_ranks: ranks of the iteration before that are gone. The assignment that closes
            the gaps clears it.
        info: the result of `RankAssignment.info` in each rank, by rank of the iteration before;
            None = it was not exchanged.
    """

    state: State
    store: Any
    terminated_ranks: set[int]
    info: dict[int, Any] | None = None


class Assignments(Compose):
    """Several rank assignments; each gets its own part of the ranks' information."""

    def info(self, state: State) -> Any:
        """Return the information of each assignment, in a list; None if none has any."""
        wanted = [getattr(each, "info", _nothing)(state) for each in self.instances]
        return None if all(each is None for each in wanted) else wanted

    def _call_one(self, position: int, args: tuple[Any, ...]) -> Any:
        (ctx,) = args
        if not isinstance(ctx, RankAssignmentCtx):
            return super()._call_one(position, args)
        info = ctx.info
        ctx.info = _part(info, position)
        try:
            return super()._call_one(position, args)
        finally:
            ctx.info = info


class RankAssignment(abc.ABC):
    """Gives ranks to the processes that are left, and says which of them call the function."""

    composition = Assignments

    @abc.abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign.

        Raises:
            RankDiscarded: this rank is left out.
        """
        raise NotImplementedError

    def info(self, state: State) -> Any:  # noqa: ARG002 - most need to know nothing
        """Return information about this rank that all ranks need before ranks are assigned.

        Returns:
            A value that JSON can hold; None = no information is needed.
        """
        return None


def discard_if_terminated(ctx: RankAssignmentCtx) -> None:
    """Leave this rank out if it is among the terminated ranks.

    Raises:
        RankDiscarded: it is.
    """
    if ctx.state.rank in ctx.terminated_ranks:
        rank = ctx.state.rank
        ctx.state.mode = Mode.TERMINATED
        ctx.state.active_rank = None
        raise RankDiscarded(f"rank {rank} (initially {ctx.state.initial_rank}) is left out")


def _part(info: dict[int, Any] | None, position: int) -> dict[int, Any] | None:
    if info is None:
        return None
    parts = ((rank, each[position]) for rank, each in info.items() if each is not None)
    return {rank: part for rank, part in parts if part is not None}


def _nothing(_state: State) -> None:
    return None


def key_of(key_or_fn: str | Callable[[State], str], state: State) -> str:
    """Return the key itself, or the function's result for this state, as text."""
    return str(key_or_fn(state)) if callable(key_or_fn) else key_or_fn


def info_of_all(
    ctx: RankAssignmentCtx, name: str, ours: Any, timeout: timedelta = TIMEOUT
) -> dict[int, Any]:
    """Return the information of every rank that is left, by rank.

    Outside of the wrapper, all ranks exchange it over ``ctx.store``.

    Args:
        ctx: has the information already where the wrapper has exchanged it.
        name: of the exchange; all ranks make the same exchanges, in the same order.
        ours: the information of this rank; JSON can hold it.
        timeout: of the wait for the other ranks.

    Raises:
        ValueError: there is neither information nor a store.
        TypeError: the store is not like one of torch's.
        BarrierTimeout: ranks did not come.
    """
    ranks = [r for r in range(ctx.state.world_size) if r not in ctx.terminated_ranks]
    if ctx.info is not None:
        return {rank: ctx.info[rank] for rank in ranks if rank in ctx.info}
    if ctx.store is None:
        raise ValueError("a store is needed, for ranks to tell each other their keys")
    missing = [name for name in _NEEDED if not hasattr(ctx.store, name)]
    if missing:
        raise TypeError(
            f"{type(ctx.store).__name__} has no {', '.join(missing)}: for ranks to tell each other "
            "their keys, give a store of torch, such as torch.distributed.TCPStore, or "
            "give their keys as RankAssignmentCtx(..., info={rank: keys})"
        )
    return _exchange(ctx, f"{name}:{len(ranks)}", ranks, ours, timeout)


def _exchange(
    ctx: RankAssignmentCtx, name: str, ranks: Sequence[int], ours: Any, timeout: timedelta
) -> dict[int, Any]:
    store, rank = ctx.store, ctx.state.rank
    if rank in ctx.terminated_ranks:
        return {}
    # Who counts for the next exchange has seen all keys of this one: all have counted here.
    name = f"{name}:{(store.add(f'inprocess_{name}', 1) - 1) // len(ranks)}"
    store.set(_key(name, rank), json.dumps(ours))
    found: dict[int, Any] = {}
    for at in range(0, len(ranks), _KEYS_AT_ONCE):
        some = ranks[at : at + _KEYS_AT_ONCE]
        keys = [_key(name, each) for each in some]
        try:
            store.wait(keys, timeout)
        except RuntimeError as error:
            raise BarrierTimeout(
                f"rank {rank} has not heard the keys of all {len(ranks)} ranks within {timeout}: "
                f"{error}"
            ) from error
        values = store.multi_get(keys)
        found |= {each: json.loads(value) for each, value in zip(some, values, strict=True)}
    return found


def _key(name: str, rank: int) -> str:
    return f"inprocess_{name}_{rank}"


class ShiftRanks(RankAssignment):
    """Ranks move down and keep their order: without ranks 1 and 2 of 5, rank 4 becomes 2."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        discard_if_terminated(ctx)
        state = ctx.state
        state.rank -= sum(rank < state.rank for rank in ctx.terminated_ranks)
        state.world_size -= len(ctx.terminated_ranks)
        ctx.terminated_ranks = set()
        return ctx


class FillGaps(RankAssignment):
    """Most keep their ranks: the last ones take those that are free, in order.

    Without ranks 1, 4 and 5 of 8, rank 6 becomes 1 and rank 7 becomes 4.
    """

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        discard_if_terminated(ctx)
        state = ctx.state
        terminated = sorted(ctx.terminated_ranks)
        world_size = state.world_size - len(terminated)
        if state.rank >= world_size:
            moving = state.rank - world_size  # how many survivors before it move as well
            moving -= bisect_left(terminated, state.rank) - bisect_left(terminated, world_size)
            state.rank = terminated[moving]
        state.world_size = world_size
        ctx.terminated_ranks = set()
        return ctx


def activate(state: State, active_world_size: int) -> None:
    """Make the first ``active_world_size`` ranks active, and the others reserves."""
    state.active_world_size = active_world_size
    if state.rank < active_world_size:
        state.mode, state.active_rank = Mode.ACTIVE, state.rank
    else:
        state.mode, state.active_rank = Mode.INACTIVE, None


def most_active(state: State) -> int:
    """Return how many ranks may be active: min(active before, ranks that are left)."""
    if state.active_world_size is None:
        return state.world_size
    return min(state.active_world_size, state.world_size)


class RankFilter(RankAssignment):
    """A rank assignment that keeps the ranks, and chooses only which of them are active."""


class ActivateAllRanks(RankFilter):
    """All ranks are active."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        activate(ctx.state, ctx.state.world_size)
        return ctx


class MaxActiveWorldSize(RankFilter):
    """At most a given number of ranks is active."""

    def __init__(self, max_active_world_size: int | None = None) -> None:
        """Limit the number of active ranks; None = all may be active.

        Raises:
            ValueError: the limit is less than 1.
        """
        if max_active_world_size is not None and max_active_world_size < 1:
            raise ValueError(f"max_active_world_size={max_active_world_size} must be at least 1")
        self.max_active_world_size = max_active_world_size

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        most = most_active(ctx.state)
        limit = most if self.max_active_world_size is None else self.max_active_world_size
        activate(ctx.state, min(most, limit))
        return ctx


class ActiveWorldSizeDivisibleBy(RankFilter):
    """The number of active ranks is a multiple of a divisor."""

    def __init__(self, divisor: int = 1) -> None:
        """Round down to multiples of ``divisor``.

        Raises:
            ValueError: it is less than 1.
        """
        if divisor < 1:
            raise ValueError(f"divisor={divisor} must be at least 1")
        self.divisor = divisor

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        most = most_active(ctx.state)
        activate(ctx.state, most - most % self.divisor)
        return ctx


class FilterCountGroupedByKey(RankAssignment):
    """Ranks with the same key are a group; groups of the wrong size are left out.

    It only adds to the terminated ranks: compose it with an assignment that closes the gaps,
    ``Compose(ShiftRanks(), FilterCountGroupedByKey(...))``.
    """

    def __init__(
        self,
        key_or_fn: str | Callable[[State], str],
        condition: Callable[[int], bool],
        timeout: timedelta = TIMEOUT,
    ) -> None:
        """Group.

        Args:
            key_or_fn: the key of this rank, or a function that makes it from the state.
            condition: gets the number of ranks that are left in a group; says whether the group
                may stay.
            timeout: for ranks to exchange their keys outside of the wrapper (60 s).
        """
        self.key_or_fn = key_or_fn
        self.condition = condition
        self.timeout = timeout

    def info(self, state: State) -> Any:
        """Return the key, in a list."""
        return [key_of(self.key_or_fn, state)]

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        infos = info_of_all(ctx, "grouped", self.info(ctx.state), self.timeout)
        keys = {rank: key for rank, (key,) in infos.items()}
        sizes = Counter(keys.values())
        left_out = {key for key, size in sizes.items() if not self.condition(size)}
        ctx.terminated_ranks |= {rank for rank, key in keys.items() if key in left_out}
        return ctx


# --- trees ----------------------------------------------------------------------------------------


class LayerFlag(enum.Flag):
    """The ways in which the groups of a layer make up for lost ranks."""

    RESERVE = enum.auto()  # inactive ranks of the group take the place of active ones
    BACKFILL = enum.auto()  # the last active ranks of the group do


@dataclasses.dataclass
class Layer:
    """One layer of a `Tree`.

    Attributes:
        min_ranks: a group with fewer ranks left is terminated as a whole.
        max_ranks: how many ranks of a group may be active; None = all.
        key_or_fn: the key of this rank, or a function that makes it from the state. Within a group
            of the layer above, ranks with the same key are a group.
        flag: how groups make up for lost ranks; None = not at all.
    """

    min_ranks: int = 1
    max_ranks: int | None = None
    key_or_fn: str | Callable[[State], str] = ""
    flag: LayerFlag | None = None


class Tree(RankAssignment):
    """Ranks in groups of groups, see `Layer`.

    Every process has a tree, and makes the same changes to it as the others. A rank is a
    `Leaf`: its place among the others never changes, but its active rank does.

    At first ranks are active in order, as far as ``max_ranks`` of their groups allow; the others
    are reserves. After a loss

    1. groups that are left with fewer than ``min_ranks`` are terminated;
    2. each active rank that is gone is replaced by the latest reserve of the nearest group around
       it, as far up as layers have ``RESERVE``;
    3. places that are still empty are taken by the last active ranks of the largest group around
       it whose layers have ``BACKFILL``;
    4. the gaps that are left are closed by shifting.

    It assigns ranks and activates: do not compose it with others.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        world_size_filter: Callable[[int], int] | None = None,
    ) -> None:
        """Describe the groups.

        Args:
            layers: from the root, which holds all ranks.
            world_size_filter: gets the number of ranks that could be active, returns how many of
                them are to be active; that must not be more.

        Raises:
            ValueError: there are no layers.
        """
        if not layers:
            raise ValueError("a Tree needs at least one layer, which holds all ranks")
        self.layers = tuple(layers)
        self.world_size_filter = world_size_filter
        self._root: Group | None = None
        self._leaves: list[Leaf] = []  # of the ranks that are alive, by rank
        self._numbers = itertools.count()  # of deactivations

    def info(self, state: State) -> Any:
        """Return this rank's keys, which the others need once."""
        return self._keys(state) if self._root is None else None

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`.

        Raises:
            RankDiscarded: this rank is terminated, or its group is.
            RuntimeError: the keys of the ranks do not fit each other.
            ValueError: ``world_size_filter`` has returned more than its argument.
        """
        if self._root is None or ctx.state.mode is Mode.INITIALIZED:
            root = self._plant(ctx)
        else:
            root = self._lose(self._root, ctx.terminated_ranks)
        self._limit(root)
        leaf = next((leaf for leaf in self._leaves if leaf.rank == ctx.state.rank), None)
        if leaf is None or not leaf.alive:
            ctx.terminated_ranks = {*ctx.terminated_ranks, ctx.state.rank}
            discard_if_terminated(ctx)
        self._leaves = list(root.all_leaves())
        for rank, each in enumerate(self._leaves):
            each.rank = rank
        assert leaf is not None
        self._take_over(ctx.state, leaf)
        ctx.terminated_ranks = set()
        return ctx

    def _keys(self, state: State) -> list[str]:
        return [key_of(layer.key_or_fn, state) for layer in self.layers]

    def _plant(self, ctx: RankAssignmentCtx) -> Group:
        """Make all groups from the keys of all ranks."""
        root = grow(self.layers, self._all_keys(ctx))
        self._root = root
        self._leaves = list(root.all_leaves())
        self._numbers = itertools.count(len(self._leaves))
        order = [leaf.rank for leaf in self._leaves]
        if order != sorted(order):
            warnings.warn(
                "ranks of a group do not follow each other; they are assigned anew, group by group",
                UserWarning,
                stacklevel=4,
            )
        if ctx.terminated_ranks:
            root.end_small_groups()
        activate_first(root)
        return root

    def _all_keys(self, ctx: RankAssignmentCtx) -> Mapping[int, Sequence[str]]:
        """Return the keys of all ranks that are left, by rank."""
        told = info_of_all(ctx, "tree", self._keys(ctx.state))
        silent = [
            rank
            for rank in range(ctx.state.world_size)
            if rank not in told and rank not in ctx.terminated_ranks
        ]
        return {**told, **self._known_before(ctx, silent)} if silent else told

    def _known_before(self, ctx: RankAssignmentCtx, silent: list[int]) -> dict[int, list[str]]:
        """Return keys that ranks have told in an earlier iteration.

        The ranks of that iteration know all of them, and put them into the store for processes that
        have joined since.
        """
        if self._root is not None:
            known = {leaf.rank: list(leaf.keys) for leaf in self._leaves}
            if ctx.state.rank == silent[0]:
                ctx.store.set(_FOR_JOINED, json.dumps(known))
        else:
            ctx.store.wait([_FOR_JOINED], TIMEOUT)
            known = {
                int(rank): keys for rank, keys in json.loads(ctx.store.get(_FOR_JOINED)).items()
            }
        return {rank: known[rank] for rank in silent}

    def _lose(self, root: Group, terminated: set[int]) -> Group:
        """Have others take the places of terminated ranks."""
        for leaf in self._leaves:
            leaf.change = ""
            if leaf.rank in terminated:
                leaf.alive = False
                leaf.change = "terminated"
        if terminated:
            root.end_small_groups()
            gone = (leaf for leaf in self._leaves if not leaf.alive)
            fill([leaf for leaf in gone if leaf.active_rank is not None])
        return root

    def _limit(self, root: Group) -> None:
        active = close_gaps(root)
        if self.world_size_filter is None:
            return
        wanted = self.world_size_filter(active)
        if wanted > active:
            raise ValueError(f"world_size_filter({active}) is {wanted}, but may not be greater")
        deactivate_from(root, wanted, self._numbers)

    def _take_over(self, state: State, leaf: Leaf) -> None:
        """Write the ranks of its leaf into this rank's state."""
        if leaf.change:
            _logger.info(
                "[In-process] initial rank %s: %s; active rank %s -> %s",
                state.initial_rank,
                leaf.change,
                state.active_rank,
                leaf.active_rank,
            )
        state.rank, state.world_size = leaf.rank, len(self._leaves)
        state.active_rank = leaf.active_rank
        state.active_world_size = sum(each.active_rank is not None for each in self._leaves)
        state.mode = Mode.INACTIVE if leaf.active_rank is None else Mode.ACTIVE


class Leaf:
    """One rank.

    Attributes:
        rank: as assigned last.
        keys: of its groups, from the root.
        group: the group of the last layer that has it; the groups above follow by ``parent``.
        active_rank: None = it is a reserve.
        deactivated: number of the deactivation that made it a reserve; later ones are higher.
        alive: False = it is terminated.
        change: its change in the last assignment, for people; "" = none.
    """

    __slots__ = ("active_rank", "alive", "change", "deactivated", "group", "keys", "rank")

    def __init__(self, rank: int, keys: Sequence[str], group: Group) -> None:
        self.rank = rank
        self.keys = keys
        self.group = group
        self.active_rank: int | None = None
        self.deactivated = 0
        self.alive = True
        self.change = ""

    def activate(self, active_rank: int, change: str = "") -> None:
        """Give a reserve an active rank."""
        self.active_rank = active_rank
        self.change = change
        for group in self.group.upwards():
            group.active += 1

    def deactivate(self) -> None:
        """Take away its active rank, if it has one."""
        if self.active_rank is None:
            return
        self.active_rank = None
        for group in self.group.upwards():
            group.active -= 1


class Group:
    """Ranks with the same key in a layer: groups of the next layer, or ranks.

    Attributes:
        active: how many ranks in it are active.
    """

    __slots__ = ("active", "groups", "layer", "leaves", "parent")

    def __init__(self, layer: Layer, parent: Group | None) -> None:
        self.layer = layer
        self.parent = parent
        self.active = 0
        self.groups: dict[str, Group] = {}
        self.leaves: list[Leaf] = []

    @property
    def has_room(self) -> bool:
        """Return whether one more rank may be active."""
        return self.layer.max_ranks is None or self.active < self.layer.max_ranks

    def has(self, flag: LayerFlag) -> bool:
        """Return whether the group makes up for lost ranks in this way."""
        return self.layer.flag is not None and flag in self.layer.flag

    def upwards(self) -> Iterator[Group]:
        """Yield this group and all groups around it, up to the root."""
        group: Group | None = self
        while group is not None:
            yield group
            group = group.parent

    def all_leaves(self) -> Iterator[Leaf]:
        """Yield its ranks that are alive, in order."""
        for group in self.groups.values():
            yield from group.all_leaves()
        yield from (leaf for leaf in self.leaves if leaf.alive)

    def end_small_groups(self) -> int:
        """Terminate every group with too few ranks; return how many ranks this group has left."""
        left = sum(group.end_small_groups() for group in self.groups.values())
        left += sum(leaf.alive for leaf in self.leaves)
        if left >= self.layer.min_ranks:
            return left
        for leaf in self.all_leaves():
            leaf.alive = False
            leaf.change = "terminated with its group"
        return 0


def grow(layers: Sequence[Layer], keys: Mapping[int, Sequence[str]]) -> Group:
    """Make the groups of all ranks; groups with a lower rank come first.

    Args:
        layers: from the root.
        keys: of each rank, one for each layer.

    Raises:
        RuntimeError: ranks differ in the key of the root, or in the number of layers.
    """
    roots = sorted({each[0] for each in keys.values()})
    if len(roots) != 1 or any(len(each) != len(layers) for each in keys.values()):
        raise RuntimeError(
            f"all ranks must have one key in the first of {len(layers)} layers, and the same "
            f"layers; the keys are {', '.join(map(repr, roots[:8]))}"
        )
    root = Group(layers[0], None)
    for rank in sorted(keys):
        group = root
        for layer, key in zip(layers[1:], keys[rank][1:], strict=True):
            group = group.groups.setdefault(key, Group(layer, group))
        group.leaves.append(Leaf(rank, keys[rank], group))
    return root


def activate_first(root: Group) -> None:
    """Activate ranks in order, each where all groups around it have room."""
    active = 0
    for number, leaf in enumerate(root.all_leaves()):
        if all(group.has_room for group in leaf.group.upwards()):
            leaf.activate(active)
            active += 1
        else:
            leaf.deactivated = number


def fill(gone: Sequence[Leaf]) -> None:
    """Have others take the active ranks of ranks that are gone, as far as the layers allow.

    Args:
        gone: leaves that were active and are terminated.
    """
    places = [(leaf.active_rank, leaf.group) for leaf in gone]
    for leaf in gone:
        leaf.deactivate()
    empty: list[tuple[int, Group]] = []
    reserves: dict[Group, Iterator[Leaf]] = {}
    for active_rank, group in sorted(places, key=lambda place: place[0] or 0):
        assert active_rank is not None
        reserve = _reserve_for(group, reserves)
        if reserve is None:
            empty.append((active_rank, group))
        else:
            reserve.activate(active_rank, "hot spare activated")
    _backfill(empty)


def close_gaps(root: Group) -> int:
    """Make the active ranks consecutive, in their order; return how many there are."""
    active = _by_active_rank(root)
    for number, leaf in enumerate(active):
        if leaf.active_rank != number:
            leaf.active_rank = number
            leaf.change = leaf.change or "shifted"
    return len(active)


def deactivate_from(root: Group, active_rank: int, numbers: Iterator[int]) -> None:
    """Make reserves of all active ranks >= ``active_rank``."""
    for leaf in _by_active_rank(root)[active_rank:]:
        leaf.deactivate()
        leaf.deactivated = next(numbers)
        leaf.change = "deactivated"


def _by_active_rank(group: Group) -> list[Leaf]:
    active = [leaf for leaf in group.all_leaves() if leaf.active_rank is not None]
    return sorted(active, key=lambda leaf: leaf.active_rank or 0)


def _reserve_for(group: Group, reserves: dict[Group, Iterator[Leaf]]) -> Leaf | None:
    """Return the reserve with the latest deactivation, of the nearest group that has a reserve."""
    for above in group.upwards():
        if not above.has(LayerFlag.RESERVE):
            return None
        if not above.has_room:
            continue
        # A reserve that was passed over has no room, and gets none while places are being filled.
        for leaf in reserves.setdefault(above, _latest_first(above)):
            if leaf.active_rank is None and all(each.has_room for each in leaf.group.upwards()):
                return leaf
    return None


def _latest_first(group: Group) -> Iterator[Leaf]:
    inactive = [leaf for leaf in group.all_leaves() if leaf.active_rank is None]
    yield from sorted(inactive, key=lambda leaf: -leaf.deactivated)


def _backfill(empty: list[tuple[int, Group]]) -> None:
    """Have the last active ranks of each domain take its empty places, lowest place first."""
    places: dict[Group, list[int]] = {}
    for active_rank, group in empty:
        domain = _domain(group)
        if domain is not None:
            places.setdefault(domain, []).append(active_rank)
    for domain, ranks in places.items():
        movable = _by_active_rank(domain)
        for active_rank in ranks:
            if not movable or (movable[-1].active_rank or 0) < active_rank:
                break
            leaf = movable.pop()
            leaf.active_rank = active_rank
            leaf.change = "backfilled"


def _domain(group: Group) -> Group | None:
    """Return the largest group around this one whose layers have ``BACKFILL``, or None."""
    domain = None
    for above in group.upwards():
        if not above.has(LayerFlag.BACKFILL):
            break
        domain = above
    return domain
