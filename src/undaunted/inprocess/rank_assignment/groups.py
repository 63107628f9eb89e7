"""The groups and ranks that a `Tree` holds. Pure: each process makes the same changes to its own.

A rank is a `Leaf`. It keeps its place among the others for ever; what changes is whether it is
there, and which active rank it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.inprocess.rank_assignment.layer import Layer, LayerFlag


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
    """Make the groups of all ranks; those with a lower rank come first.

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
