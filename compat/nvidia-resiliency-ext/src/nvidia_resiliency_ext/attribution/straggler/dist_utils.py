"""Collectives that a process without a group can call as well: it is rank 0 of one.

Groups are those of `torch.distributed`, None = the default one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from undaunted.base.torch_ranks import device_of

if TYPE_CHECKING:
    import torch


def all_gather_object(obj: Any, group: Any) -> list[Any]:
    """Return the object of every rank of the group, in the order of ranks. A collective.

    Args:
        obj: plain data: no pickle is sent.
        group: see the module.
    """
    if _distributed() is None:
        return [obj]
    from nvidia_resiliency_ext.checkpointing.local.replication.group_utils import GroupWrapper

    return GroupWrapper(group).all_gather_object(obj)


def get_world_size(group: Any) -> int:
    """Return the number of ranks in the group."""
    dist = _distributed()
    return 1 if dist is None else int(dist.get_world_size(group))


def get_rank(group: Any) -> int:
    """Return the rank of this process in the group."""
    dist = _distributed()
    return 0 if dist is None else int(dist.get_rank(group))


def get_device_for_backend(group: Any) -> torch.device:
    """Return a device whose tensors the group takes, the CPU if it can be."""
    import torch

    dist = _distributed()
    return torch.device("cpu") if dist is None else torch.device(device_of(dist, group))


def all_reduce(
    tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
) -> Any:
    """Reduce a tensor over the ranks of the group, in place. A collective.

    Args:
        tensor: on a device that the group takes.
        op: a ``ReduceOp``; None = the sum.
        group: see the module.
        async_op: return at once, with something to wait for.
    """
    dist = _distributed()
    if dist is None:
        return None
    op = dist.ReduceOp.SUM if op is None else op
    return dist.all_reduce(tensor, op=op, group=group, async_op=async_op)


def gather_on_rank0(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor] | None:
    """Return the tensor of every rank, on the device of this one's; None if this is not rank 0.

    A collective: tensors have the same form and type on all ranks.
    """
    import torch

    dist = _distributed()
    if dist is None:
        return [tensor]
    mine = tensor.to(get_device_for_backend(group))
    first = dist.get_global_rank(group or dist.group.WORLD, 0)
    found = None
    if dist.get_rank() == first:
        found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.gather(mine, found, dst=first, group=group)
    return None if found is None else [one.to(tensor.device) for one in found]


def _distributed() -> Any:
    """Return torch.distributed if it has a default group; else None."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
