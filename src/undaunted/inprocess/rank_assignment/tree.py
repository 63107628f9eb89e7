"""Rank assignment for machines with an order: racks, nodes, reserves among them."""

from __future__ import annotations

import itertools
import json
import logging
import warnings
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.rank_assignment import succession
from undaunted.inprocess.rank_assignment.context import RankAssignment, discard_if_terminated
from undaunted.inprocess.rank_assignment.exchange import TIMEOUT, key_of, known_of_all
from undaunted.inprocess.rank_assignment.groups import Group, grow
from undaunted.inprocess.state import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from undaunted.inprocess.rank_assignment.context import RankAssignmentCtx
    from undaunted.inprocess.rank_assignment.groups import Leaf
    from undaunted.inprocess.rank_assignment.layer import Layer
    from undaunted.inprocess.state import State

_logger = logging.getLogger("undaunted")
_FOR_JOINED = "inprocess_tree_keys"


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
        succession.activate_first(root)
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
            succession.fill([leaf for leaf in gone if leaf.active_rank is not None])
        return root

    def _limit(self, root: Group) -> None:
        active = succession.close_gaps(root)
        if self.world_size_filter is None:
            return
        wanted = self.world_size_filter(active)
        if wanted > active:
            raise ValueError(f"world_size_filter({active}) is {wanted}, but may not be greater")
        succession.deactivate_from(root, wanted, self._numbers)

    def _take_over(self, state: State, leaf: Leaf) -> None:
        """Write into this rank's state what has become of it."""
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
