"""Rank assignment for machines with an order: racks, nodes, reserves among them.

A `Tree` holds groups and ranks; each process makes the same changes to its own. A rank is a `Leaf`.
It keeps its place among the others for ever; what changes is whether it is there, and which active
rank it has.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import logging
import warnings
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.rank_assignment.assignments import (
    TIMEOUT,
    RankAssignment,
    discard_if_terminated,
    key_of,
    known_of_all,
)
from undaunted.inprocess.state import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from undaunted.inprocess.rank_assignment.assignments import RankAssignmentCtx
    from undaunted.inprocess.state import State

_logger = logging.getLogger("undaunted")
_FOR_JOINED = "inprocess_tree_keys"


class LayerFlag(enum.Flag):
    """How the groups of a layer make up for lost ranks."""

    RESERVE = enum.auto()  # inactive ranks of the group take the place of active ones
    BACKFILL = enum.auto()  # the last active ranks of the group do


@dataclasses.dataclass
class Layer:
    """One layer.

    Attributes:
        min_ranks: a group with fewer ranks left is terminated as a whole.
        max_ranks: so many ranks of a group may be active; None = all.
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
            world_size_filter: makes from the number of ranks that could be active the number of
                those that are; it must not be greater.

        Raises:
            ValueError: there are no layers.
        """
        if not layers:
            raise ValueError("a Tree needs at least one layer, which holds all ranks")
        self.layers = tuple(layers)
        self.world_size_filter = world_size_filter
        self._root: Group | None = None
        self._leaves: list[Leaf] = []  # those that are there, by rank
        self._numbers = itertools.count()  # of deactivations

    def info(self, state: State) -> Any:
        """Return this rank's keys, which the others want to know once."""
        return self._keys(state) if self._root is None else None

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`.

        Raises:
            RankDiscarded: this rank is terminated, or its group is.
            RuntimeError: the keys of the ranks do not fit each other.
            ValueError: ``world_size_filter`` has returned more than it got.
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
        told = known_of_all(ctx, "tree", self._keys(ctx.state))
        silent = [
            rank
            for rank in range(ctx.state.world_size)
            if rank not in told and rank not in ctx.terminated_ranks
        ]
        return {**told, **self._known_before(ctx, silent)} if silent else told

    def _known_before(self, ctx: RankAssignmentCtx, silent: list[int]) -> dict[int, list[str]]:
        """Return keys that were told in an earlier iteration; processes that joined ask for them.

        Whoever was there before knows those of all others.
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
        """Write the ranks that it was given into this rank's state."""
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
        rank: as it was assigned last.
        keys: of its groups, from the root.
        group: it is in; those above it follow by ``parent``.
        active_rank: None = it is a reserve.
        deactivated: when it became a reserve, as a number that grows.
        alive: whether it is there.
        change: what has happened to it in the last assignment, for people; "" = nothing.
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
        """Give it an active rank; it had none."""
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
        """Whether one rank more may be active."""
        return self.layer.max_ranks is None or self.active < self.layer.max_ranks

    def has(self, flag: LayerFlag) -> bool:
        """Whether it makes up for lost ranks in this way."""
        return self.layer.flag is not None and flag in self.layer.flag

    def upwards(self) -> Iterator[Group]:
        """Yield this group and all that it is in."""
        group: Group | None = self
        while group is not None:
            yield group
            group = group.parent

    def all_leaves(self) -> Iterator[Leaf]:
        """Yield its ranks that are there, in order."""
        for group in self.groups.values():
            yield from group.all_leaves()
        yield from (leaf for leaf in self.leaves if leaf.alive)

    def end_small_groups(self) -> int:
        """End every group with too few ranks; return how many ranks are left in this one."""
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
    """Activate ranks in order, as long as all groups they are in have room."""
    active = 0
    for number, leaf in enumerate(root.all_leaves()):
        if all(group.has_room for group in leaf.group.upwards()):
            leaf.activate(active)
            active += 1
        else:
            leaf.deactivated = number


def fill(gone: Sequence[Leaf]) -> None:
    """Have others take the active ranks of ranks that are gone.

    Args:
        gone: were active and are not there any more. Places that nobody takes stay empty.
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
    """Make reserves of the active ranks from this one on."""
    for leaf in _by_active_rank(root)[active_rank:]:
        leaf.deactivate()
        leaf.deactivated = next(numbers)
        leaf.change = "deactivated"


def _by_active_rank(group: Group) -> list[Leaf]:
    active = [leaf for leaf in group.all_leaves() if leaf.active_rank is not None]
    return sorted(active, key=lambda leaf: leaf.active_rank or 0)


def _reserve_for(group: Group, reserves: dict[Group, Iterator[Leaf]]) -> Leaf | None:
    """Return the reserve that became one last, of the nearest group that has any."""
    for above in group.upwards():
        if not above.has(LayerFlag.RESERVE):
            return None
        if not above.has_room:
            continue
        # What was passed over has no room, and will not get any while places are being filled.
        for leaf in reserves.setdefault(above, _latest_first(above)):
            if leaf.active_rank is None and all(each.has_room for each in leaf.group.upwards()):
                return leaf
    return None


def _latest_first(group: Group) -> Iterator[Leaf]:
    inactive = [leaf for leaf in group.all_leaves() if leaf.active_rank is None]
    yield from sorted(inactive, key=lambda leaf: -leaf.deactivated)


def _backfill(empty: list[tuple[int, Group]]) -> None:
    """Have the last active ranks of each domain take its empty places, the lowest place first."""
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
    """Return the largest group around this one in which places are filled from the end."""
    domain = None
    for above in group.upwards():
        if not above.has(LayerFlag.BACKFILL):
            break
        domain = above
    return domain
