"""The ranks that keep copies of the shards of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from undaunted.base.torch_ranks import ranks_of_a_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "CliqueReplicationStrategy",
    "LazyCliqueReplicationStrategy",
    "LazyReplicationStrategyBuilder",
    "ReplicationStrategy",
    "parse_group_sequence",
]


class ReplicationStrategy(ABC):
    """The ranks that keep copies for each other; a manager asks when it first saves or loads."""

    @property
    @abstractmethod
    def clique(self) -> Sequence[int]:
        """The global ranks, this one included, that keep copies of each other's shards."""


class CliqueReplicationStrategy(ReplicationStrategy):
    """Every rank of a group has the shards of all its ranks.

    Args:
        local_group: its global ranks, or a process group of torch.
    """

    def __init__(self, local_group: Any) -> None:
        self._ranks = ranks_of(local_group)

    @classmethod
    def from_replication_params(
        cls, replication_jump: int | None = None, replication_factor: int = 2
    ) -> Self:
        """Divide all ranks into groups; see `parse_group_sequence`.

        Args:
            replication_jump: distance of the ranks of a group; None or 0 = the ranks of a node.
            replication_factor: ranks of a group.

        Raises:
            ValueError: the world cannot be divided like that.
        """
        jump = replication_jump or ranks_of_a_node()
        return cls(group_of_this_rank(jump, replication_factor))

    @property
    def clique(self) -> Sequence[int]:
        """The ranks of the group."""
        return list(self._ranks)


class LazyReplicationStrategyBuilder(ReplicationStrategy):
    """A strategy that is made at first need, so that `torch.distributed` may come later.

    A subclass says in ``_eager_build`` which.
    """

    def __init__(self) -> None:
        self._built: ReplicationStrategy | None = None

    @abstractmethod
    def _eager_build(self) -> ReplicationStrategy:
        """Make the strategy; called once."""

    @property
    def replication_strategy(self) -> ReplicationStrategy:
        """The strategy."""
        if self._built is None:
            self._built = self._eager_build()
        return self._built

    @property
    def clique(self) -> Sequence[int]:
        """See `ReplicationStrategy.clique`."""
        return self.replication_strategy.clique


class LazyCliqueReplicationStrategy(LazyReplicationStrategyBuilder):
    """`CliqueReplicationStrategy.from_replication_params`, at first need.

    Args:
        replication_jump: see there.
        replication_factor: likewise.
    """

    def __init__(self, replication_jump: int | None = None, replication_factor: int = 2) -> None:
        super().__init__()
        self._jump = replication_jump
        self._factor = replication_factor

    def _eager_build(self) -> ReplicationStrategy:
        return CliqueReplicationStrategy.from_replication_params(self._jump, self._factor)


def parse_group_sequence(
    replication_jump: int, replication_factor: int, world_size: int
) -> list[list[int]]:
    """Return the groups of ranks that keep copies for each other.

    Ranks that are ``replication_jump`` apart are on different nodes, when that is the number of
    ranks of a node; ``replication_factor`` of them, one after the other, make a group.

    >>> parse_group_sequence(2, 2, 8)
    [[0, 2], [1, 3], [4, 6], [5, 7]]

    Raises:
        ValueError: the world cannot be divided into such groups.
    """
    if replication_jump < 1 or replication_factor < 1:
        raise ValueError(
            f"replication_jump and replication_factor must be at least 1, not {replication_jump} "
            f"and {replication_factor}"
        )
    span = replication_jump * replication_factor
    if world_size % span:
        raise ValueError(
            f"{world_size} ranks cannot be divided into groups of {replication_factor} that are "
            f"{replication_jump} apart: the number of ranks must be a multiple of {span}"
        )
    return [
        list(range(start + first, start + span, replication_jump))
        for start in range(0, world_size, span)
        for first in range(replication_jump)
    ]


def group_of_this_rank(jump: int, factor: int) -> list[int]:
    """Return the ranks that keep copies for this one; see `parse_group_sequence`."""
    me = dist.get_rank()
    groups = parse_group_sequence(jump, factor, dist.get_world_size())
    return next(ranks for ranks in groups if me in ranks)


def ranks_of(group: Iterable[int] | dist.ProcessGroup) -> list[int]:
    """Return the global ranks of a group; none if this rank is not in a process group."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return []
    if isinstance(group, dist.ProcessGroup):
        return list(dist.get_process_group_ranks(group))
    return list(group)
