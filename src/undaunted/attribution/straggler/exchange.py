"""What ranks tell each other for a report: collectives of the default group, if there is one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def own_rank() -> int:
    """Return the rank of this process; 0 where nobody says."""
    dist = _with_group()
    return int(os.environ.get("RANK", "0")) if dist is None else int(dist.get_rank())


def all_gather(content: bytes) -> list[bytes]:
    """Return what every rank has given, in the order of ranks. A collective."""
    dist = _distributed()
    if dist is None:
        return [content]
    import torch

    ranks = dist.get_world_size()
    sizes = [_tensor([0]) for _ in range(ranks)]
    dist.all_gather(sizes, _tensor([len(content)]))
    lengths = [int(size) for size in torch.cat(sizes).tolist()]
    longest = max(lengths)
    own = torch.frombuffer(bytearray(content.ljust(longest)), dtype=torch.uint8).to(_device())
    contents = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(contents, own)
    together = bytearray(ranks * longest)
    torch.frombuffer(together, dtype=torch.uint8).copy_(torch.cat(contents))
    return [
        bytes(together[place * longest : place * longest + length])
        for place, length in enumerate(lengths)
    ]


def greatest(value: float) -> float:
    """Return the greatest value that any rank has given. A collective."""
    dist = _distributed()
    if dist is None:
        return value
    tensor = _tensor([value])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor.item())


def each(value: float) -> list[float]:
    """Return what every rank has given, in the order of ranks. A collective.

    Where there is no group it is this value alone.
    """
    dist = _with_group()
    if dist is None:
        return [value]
    import torch

    values = [_tensor([value]) for _ in range(dist.get_world_size())]
    dist.all_gather(values, _tensor([value]))
    return [float(one) for one in torch.cat(values).tolist()]


def said_by_rank_0(value: bool) -> bool:
    """Return the value that rank 0 has given. A collective."""
    dist = _distributed()
    if dist is None:
        return value
    tensor = _tensor([float(value)])
    dist.broadcast(tensor, src=0)
    return bool(tensor.item())


def _with_group() -> Any:
    """Return torch.distributed if it has a default group; else None."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _distributed() -> Any:
    """Return torch.distributed with its default group; None for a process alone.

    Raises:
        RuntimeError: there are other ranks, and no group.
    """
    dist = _with_group()
    if dist is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
            "Ranks cannot be compared before torch.distributed.init_process_group: WORLD_SIZE is "
            f"{os.environ['WORLD_SIZE']}. Call it first, or initialize the Detector with "
            "scores_to_compute=['individual_perf_scores'], gather_on_rank0=False."
        )
    return dist


def _tensor(values: list[Any]) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=torch.float64, device=_device())


def _device() -> torch.device:
    """Return a device whose tensors the default group takes, the CPU if it can be."""
    import torch
    import torch.distributed as dist

    kinds = dict(pair.split(":", 1) for pair in dist.get_backend_config().split(","))
    if "cpu" in kinds:
        return torch.device("cpu")
    kind = next(iter(kinds))
    return torch.device(kind, torch.get_device_module(kind).current_device())
