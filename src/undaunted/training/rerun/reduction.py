"""How ranks learn what any of them wishes, over torch's default process group."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.agreement.connect import device_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def place() -> tuple[int, int]:
    """Return the rank of this process, and how many there are."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized():
            return int(dist.get_rank()), int(dist.get_world_size())
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def is_distributed() -> bool:
    """Whether there are other ranks."""
    return _group() is not None


def any_rank(wishes: Sequence[bool]) -> list[bool]:
    """Return which of these wishes any rank has. All ranks call it, if there is a process group."""
    group = _group()
    if group is None:
        return list(wishes)
    torch, dist, device = group
    flags = torch.tensor(wishes, dtype=torch.float32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [flag > 0 for flag in flags.tolist()]


def gather(value: Any) -> list[Any]:
    """Return what each rank gives, in order of ranks.

    Args:
        value: of numbers, texts, lists and dicts.
    """
    group = _group()
    if group is None:
        return [value]
    torch, dist, device = group
    data = json.dumps(value).encode()
    sizes = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    sizes[dist.get_rank()] = len(data)
    dist.all_reduce(sizes)
    mine = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    all_of_them = [torch.empty_like(mine) for _ in sizes]
    dist.all_gather(all_of_them, mine)
    pairs = zip(sizes.tolist(), all_of_them, strict=True)
    return [json.loads(bytes(one[:size].tolist())) for size, one in pairs]


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else default


def _group() -> tuple[Any, Any, Any] | None:
    """Return torch, its collectives, and on which device they work; None = there is one process."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return torch, dist, device_of(dist, None)
