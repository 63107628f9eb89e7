"""Who keeps copies of whose shards, and how a lost shard comes back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from undaunted.checkpointing.local import flat, shard
from undaunted.checkpointing.local.replication.exchange import exchange
from undaunted.checkpointing.local.replication.group_utils import GroupWrapper
from undaunted.checkpointing.local.replication.plans import (
    ExchangePlan,
    NoReplicasAvailableError,
    parse_group_sequence,
    plan_transfers,
)
from undaunted.checkpointing.local.replication.states import flatten
from undaunted.checkpointing.staging.copy import memory_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict

__all__ = [
    "CliqueReplicationStrategy",
    "LazyCliqueReplicationStrategy",
    "LazyReplicationStrategyBuilder",
    "NoReplicasAvailableError",
    "ReplicationStrategy",
]


class ReplicationStrategy(ABC):
    """How shards are kept more than once."""

    @property
    @abstractmethod
    def clique(self) -> Sequence[int]:
        """The global ranks, this one included, that keep copies of each other's shards."""

    @abstractmethod
    def replicate(
        self, local_ckpt: TensorAwareStateDict, id_: Hashable
    ) -> tuple[list[TensorAwareStateDict], list[Any]]:
        """Return the states of all ranks of the clique, and their ids; blocks.

        A manager does not use this: it sends flat shards beside training.
        """

    @abstractmethod
    def retrieve_plan(
        self,
        globally_available_ids: Mapping[int, Collection[Any]],
        wanted: Collection[Any],
    ) -> ExchangePlan[Any]:
        """Return who sends what to whom.

        Args:
            globally_available_ids: by global rank, what it has; the same on all ranks.
            wanted: what this rank needs.

        Raises:
            NoReplicasAvailableError: nobody in the clique has what one of it needs.
        """

    @abstractmethod
    def retrieve_execute(
        self, plan: ExchangePlan[Any], my_data: Mapping[Any, TensorAwareStateDict]
    ) -> dict[Hashable, TensorAwareStateDict]:
        """Carry out a plan; see `GroupWrapper.execute_plan`."""


class CliqueReplicationStrategy(ReplicationStrategy):
    """Every rank of a group has the shards of all its ranks.

    Args:
        local_group: the ranks; a `GroupWrapper` or a process group.
        target_device: where `replicate` puts the states of others.
    """

    def __init__(self, local_group: Any, target_device: str | torch.device = "cpu") -> None:
        group = GroupWrapper.wrap(local_group)
        if torch.device("cpu") not in group.supported_devices:  # copies travel from host memory
            group = GroupWrapper.from_list_of_groups([group.ranks])
        self.local_group = group
        self.target_device = torch.device(target_device)

    @classmethod
    def from_replication_params(
        cls, replication_jump: int | None = None, replication_factor: int = 2
    ) -> CliqueReplicationStrategy:
        """Divide all ranks into groups; see `parse_group_sequence`.

        Args:
            replication_jump: distance of the ranks of a group; None or 0 = the ranks of a node.
            replication_factor: ranks of a group.

        Raises:
            ValueError: the world cannot be divided like that.
        """
        jump = replication_jump or ranks_of_a_node()
        groups = parse_group_sequence(jump, replication_factor, dist.get_world_size())
        return cls(GroupWrapper.from_list_of_groups(groups))

    @property
    def clique(self) -> Sequence[int]:
        """The ranks of the group."""
        return self.local_group.ranks

    def replicate(
        self, local_ckpt: TensorAwareStateDict, id_: Hashable
    ) -> tuple[list[TensorAwareStateDict], list[Any]]:
        """Return the states of all ranks of the group and their ids, this rank's first."""
        ids = dict(zip(self.clique, self.local_group.all_gather_object(id_), strict=True))
        taken = _Taken()
        for _ in exchange(self.local_group, _Given(flatten(local_ckpt)), taken, "replicate"):
            pass
        for state in taken.states.values():
            self._place(state)
        me = self.local_group.my_global_rank
        return [local_ckpt, *taken.states.values()], [
            ids[me],
            *(ids[rank] for rank in taken.states),
        ]

    def _place(self, state: TensorAwareStateDict) -> None:
        if self.target_device.type == "cpu":
            state.copy_tensors_to_cpu()
            return
        tensors = state.pop_tensors()
        state.insert_tensors([tensor.to(self.target_device) for tensor in tensors])

    def retrieve_plan(
        self, globally_available_ids: Mapping[int, Collection[Any]], wanted: Collection[Any]
    ) -> ExchangePlan[Any]:
        """Return who of the group sends what to whom; see `ReplicationStrategy`."""
        everyone = self.local_group.all_gather_object(list(wanted))
        available = {rank: globally_available_ids.get(rank, ()) for rank in self.clique}
        plan: ExchangePlan[Any] = ExchangePlan(self.local_group)
        for move in plan_transfers(available, dict(zip(self.clique, everyone, strict=True))):
            plan.plan(sender=move.sender, receiver=move.receiver, id_=move.id_)
        return plan

    def retrieve_execute(
        self, plan: ExchangePlan[Any], my_data: Mapping[Any, TensorAwareStateDict]
    ) -> dict[Hashable, TensorAwareStateDict]:
        """Carry out a plan; see `GroupWrapper.execute_plan`."""
        return self.local_group.execute_plan(plan, my_data)


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

    def replicate(
        self, local_ckpt: TensorAwareStateDict, id_: Hashable
    ) -> tuple[list[TensorAwareStateDict], list[Any]]:
        """See `ReplicationStrategy.replicate`."""
        return self.replication_strategy.replicate(local_ckpt, id_)

    def retrieve_plan(
        self, globally_available_ids: Mapping[int, Collection[Any]], wanted: Collection[Any]
    ) -> ExchangePlan[Any]:
        """See `ReplicationStrategy.retrieve_plan`."""
        return self.replication_strategy.retrieve_plan(globally_available_ids, wanted)

    def retrieve_execute(
        self, plan: ExchangePlan[Any], my_data: Mapping[Any, TensorAwareStateDict]
    ) -> dict[Hashable, TensorAwareStateDict]:
        """See `ReplicationStrategy.retrieve_execute`."""
        return self.replication_strategy.retrieve_execute(plan, my_data)


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

    def _eager_build(self) -> CliqueReplicationStrategy:
        return CliqueReplicationStrategy.from_replication_params(self._jump, self._factor)


def ranks_of_a_node() -> int:
    """Return how many ranks a node has: as the launcher says, else its devices."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdigit() and int(told) else max(torch.cuda.device_count(), 1)


class _Given:
    """A state that is sent without being written."""

    def __init__(self, image: torch.Tensor) -> None:
        self.image: torch.Tensor | None = image
        self._crc32 = shard.block_checksums(memory_of(image))

    def checksums(self) -> str | None:
        return self._crc32


class _Taken:
    """States that are kept in memory."""

    def __init__(self) -> None:
        self.states: dict[int, TensorAwareStateDict] = {}

    def room(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def received(self, rank: int, image: torch.Tensor, crc32: str) -> None:
        where = f"the state from rank {rank}"
        if shard.block_checksums(memory_of(image)) != crc32:
            raise shard.damaged(where, "the bytes arrived changed")
        self.states[rank] = flat.rebuild_from(image, where)
