"""Exchange among ranks over process groups of torch; a process without torch is alone."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from undaunted.base.sizes import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup


def place() -> tuple[int, int]:
    """Return the rank of this process, and how many there are."""
    torch = _torch()
    if torch is not None:
        return int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())
    return whole(os.environ.get("RANK")) or 0, whole(os.environ.get("WORLD_SIZE")) or 1


def ranks_of_a_node() -> int:
    """Return how many ranks a node has: as the launcher says, else one for each of its GPUs."""
    import torch

    return whole(os.environ.get("LOCAL_WORLD_SIZE")) or max(1, int(torch.cuda.device_count()))


def has_group() -> bool:
    """Return whether torch has a default process group in this process."""
    return _torch() is not None


def is_distributed() -> bool:
    """Return whether there are other ranks that can be told something."""
    torch = _torch()
    return torch is not None and torch.distributed.get_world_size() > 1


def any_rank(wishes: Sequence[bool]) -> list[bool]:
    """Return which of these wishes any rank has. All ranks call it, if there is a process group."""
    torch = _torch()
    if torch is None or torch.distributed.get_world_size() == 1:
        return list(wishes)
    dist = torch.distributed
    flags = torch.tensor(wishes, dtype=torch.float32, device=device_of(dist, None))
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [flag > 0 for flag in flags.tolist()]


def members(group: ProcessGroup | None) -> list[int]:
    """Return the global ranks of a group, in its order; None = the default one, if there is one."""
    torch = _torch()
    if torch is None:
        return [place()[0]]
    dist = torch.distributed
    return [*dist.get_process_group_ranks(group or dist.group.WORLD)]


def gather(value: Any, group: ProcessGroup | None = None) -> list[Any]:
    """Return what each rank of a group gives, in the order of its ranks.

    Args:
        value: of numbers, texts, lists and dicts.
        group: None = the default one, or this rank alone where there is none.
    """
    return [json.loads(one) for one in gather_texts(json.dumps(value).encode(), group)]


def gather_texts(data: bytes, group: ProcessGroup | None = None) -> list[bytes]:
    """Return what each rank of a group gives, of any length; see `gather`."""
    told = gather_bytes(len(data).to_bytes(8, "little"), group)
    lengths = [int.from_bytes(one, "little") for one in told]
    texts = gather_bytes(data.ljust(max(lengths)), group)
    return [text[:length] for text, length in zip(texts, lengths, strict=True)]


def gather_bytes(data: bytes, group: ProcessGroup | None) -> list[bytes]:
    """Return what each rank of a group gives, in the order of its ranks.

    Args:
        data: of the same length on all of them.
        group: as in `gather`.

    Raises:
        RuntimeError: of torch, as from any collective operation.
    """
    torch = _torch()
    if not data or torch is None:
        return [data for _ in members(group)]
    dist = torch.distributed
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device_of(dist, group))
    each = [torch.empty_like(mine) for _ in members(group)]
    dist.all_gather(each, mine, group=group)
    together = bytearray(len(each) * len(data))
    torch.frombuffer(together, dtype=torch.uint8).copy_(torch.cat(each))
    return [bytes(together[at : at + len(data)]) for at in range(0, len(together), len(data))]


def is_member(group: ProcessGroup | None) -> bool:
    """Return whether this rank belongs to a group."""
    torch = _torch()
    return torch is None or torch.distributed.get_rank(group) >= 0


def device_of(dist: Any, group: ProcessGroup | None) -> str:
    """Return where tensors have to be to travel over a group."""
    config = str(dist.get_backend_config(group))
    return "cpu" if "cpu:" in config else config.partition(":")[0]


def _torch() -> Any:
    """Return torch if it has a default process group."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    dist = torch.distributed
    return torch if dist.is_available() and dist.is_initialized() else None
