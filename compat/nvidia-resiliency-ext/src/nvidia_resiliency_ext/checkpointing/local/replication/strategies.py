"""The ranks that keep copies of shards; managers of undaunted ask for ``clique`` only."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

import torch

from nvidia_resiliency_ext.checkpointing.local.replication.group_utils import (
    ExchangePlan,
    GroupWrapper,
    flatten,
)
from undaunted.checkpointing.local import flat, shard
from undaunted.checkpointing.local.replication import strategies
from undaunted.checkpointing.local.replication.exchange import Header, exchange
from undaunted.checkpointing.local.selection import (
    NoReplicasAvailableError as NoReplicasAvailableError,
)
from undaunted.checkpointing.local.selection import plan_transfers
from undaunted.checkpointing.memory.copy import memory_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict


class ReplicationStrategy(strategies.ReplicationStrategy):
    """The way in which shards are kept more than once."""

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


class CliqueReplicationStrategy(strategies.CliqueReplicationStrategy, ReplicationStrategy):
    """Every rank of a group has the shards of all its ranks.

    Args:
        local_group: its global ranks, a `GroupWrapper` or a process group.
        target_device: where `replicate` puts the states of others.
    """

    def __init__(self, local_group: Any, target_device: str | torch.device = "cpu") -> None:
        if isinstance(local_group, list | tuple):
            local_group = GroupWrapper.from_list_of_groups([local_group])
        group = GroupWrapper.wrap(local_group)
        if torch.device("cpu") not in group.supported_devices:  # copies travel from host memory
            group = GroupWrapper.from_list_of_groups([group.ranks])
        super().__init__(group.ranks)
        self.local_group = group
        self.target_device = torch.device(target_device)

    def replicate(
        self, local_ckpt: TensorAwareStateDict, id_: Hashable
    ) -> tuple[list[TensorAwareStateDict], list[Any]]:
        """Return the states of all ranks of the group and their ids, this rank's first."""
        group = self.local_group
        ids = dict(zip(self.clique, group.all_gather_object(id_), strict=True))
        image = flatten(local_ckpt)
        crc32 = shard.block_checksums(memory_of(image))
        states: dict[int, TensorAwareStateDict] = {}

        def room(_: int, theirs: Header) -> torch.Tensor:
            return torch.empty(max(theirs.size, 0), dtype=torch.uint8)

        def received(rank: int, theirs: torch.Tensor, expected: str) -> None:
            where = f"the state from rank {rank}"
            if shard.block_checksums(memory_of(theirs)) != expected:
                raise shard.damaged(where, "the bytes arrived changed")
            states[rank] = flat.rebuild_from(theirs, where)

        exchange(group, Header.of(image, "replicate"), image, lambda: crc32, room, received)
        for state in states.values():
            self._place(state)
        return [local_ckpt, *states.values()], [ids[rank] for rank in (group.me, *states)]

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
        wanted_by = dict(zip(self.clique, everyone, strict=True))
        for sender, receiver, id_ in plan_transfers(available, wanted_by):
            plan.plan(sender=sender, receiver=receiver, id_=id_)
        return plan

    def retrieve_execute(
        self, plan: ExchangePlan[Any], my_data: Mapping[Any, TensorAwareStateDict]
    ) -> dict[Hashable, TensorAwareStateDict]:
        """Carry out a plan; see `GroupWrapper.execute_plan`."""
        return self.local_group.execute_plan(plan, my_data)


class LazyReplicationStrategyBuilder(
    strategies.LazyReplicationStrategyBuilder, ReplicationStrategy
):
    """A strategy that is made at first need, so that `torch.distributed` may come later.

    A subclass says in ``_eager_build`` which.
    """

    @property
    def replication_strategy(self) -> ReplicationStrategy:
        """The strategy."""
        return cast("ReplicationStrategy", super().replication_strategy)

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
