"""What the ranks of a job do with groups and strategies of nvidia_resiliency_ext."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from nvidia_resiliency_ext.attribution.straggler import dist_utils
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.replication._torch_future import (
    recv_object_list,
    send_object_list,
)
from nvidia_resiliency_ext.checkpointing.local.replication.group_utils import GroupWrapper
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import (
    CliqueReplicationStrategy,
)
from tests.checkpointing.local.rank_program import RANK, same, state


def groups() -> dict[str, Any]:
    """What a group can do, with four ranks."""
    told: dict[str, Any] = {}
    strategy = CliqueReplicationStrategy.from_replication_params(2, 2)
    group = strategy.local_group
    told["ranks"] = [group.ranks, group.my_group_rank, group.get_global_rank(1), group.backend]
    of_torch = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    same_ranks = GroupWrapper.from_list_of_groups(of_torch)
    told["of torch"] = [
        same_ranks.group in of_torch,
        same_ranks.ranks,
        same_ranks.get_group_rank(),
        same_ranks.get_global_rank(),
        same_ranks.all_gather_object(RANK),
    ]
    mine = {"rank": RANK, ("tuple", 1): [None, 2.5]}
    told["objects"] = [one["rank"] for one in group.all_gather_object(mine)]
    batch = group.all_gather_batch([torch.full((RANK + 1,), RANK), torch.tensor(True)])
    told["batch"] = [[one.tolist() for one in tensors] for tensors in batch]
    tensor = torch.full((2,), float(RANK))
    told["broadcast"] = group.broadcast(tensor, group.ranks[1]).tolist()
    states, ids = strategy.replicate(BasicTensorAwareStateDict(state(7)), (7, RANK))
    told["replicated"] = [
        list(id_) for one, id_ in zip(states, ids, strict=True) if same(one.state_dict, state(*id_))
    ]
    available = {0: [(7, 0), (7, 2)], 1: [(7, 1), (7, 3)], 2: [], 3: [(7, 3)]}
    plan = strategy.retrieve_plan(available, [(7, RANK)])
    told["plan"] = [[entry.sender, entry.receiver] for entry in plan.entries]
    have = {id_: one for id_, one in zip(ids, states, strict=True) if id_ in plan.required_ids()}
    back = strategy.retrieve_execute(plan, have)
    told["retrieved"] = [
        list(id_) for id_, one in back.items() if same(one.state_dict, state(*id_))
    ]
    world = GroupWrapper.wrap(dist.group.WORLD)
    told["world"] = [world.ranks, str(world.get_device()), world.world_size]
    if RANK == 0:
        world.send_object({"a": (1, 2)}, 3)
    if RANK == 3:
        told["received"] = world.recv_object(0) == {"a": (1, 2)}
    if RANK == 1:
        send_object_list([{"a": (1, 2)}, None, "text"], 2)
    if RANK == 2:
        received: list[Any] = [0, 0, 0]
        told["list"] = [recv_object_list(received), received == [{"a": (1, 2)}, None, "text"]]
    told["collectives"] = collectives(of_torch[RANK % 2])
    return told


def collectives(group: Any) -> list[Any]:
    """What the collectives of stragglers tell in a group of two ranks."""
    total = torch.tensor([RANK])
    dist_utils.all_reduce(total, group=group)
    gathered = dist_utils.gather_on_rank0(torch.tensor([RANK]), group)
    return [
        [dist_utils.get_rank(group), dist_utils.get_world_size(group), dist_utils.get_rank(None)],
        str(dist_utils.get_device_for_backend(group)),
        [rank for rank, _ in dist_utils.all_gather_object((RANK, "name"), group)],
        total.item(),
        None if gathered is None else [one.item() for one in gathered],
    ]


def main() -> None:
    dist.init_process_group("gloo")
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
