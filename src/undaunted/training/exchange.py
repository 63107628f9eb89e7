"""What ranks tell each other in a check: a few bytes of each, over a process group of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from undaunted.checkpointing.agreement.connect import device_of
from undaunted.training.rerun import reduction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PAD = b" "


def members(group: ProcessGroup | None) -> list[int]:
    """Return the global ranks of a group, in its order; None = the default one, if there is one."""
    if not _is_ready():
        return [reduction.place()[0]]
    return [*dist.get_process_group_ranks(group or dist.group.WORLD)]


def gather(data: bytes, group: ProcessGroup | None) -> list[bytes]:
    """Return what each rank of a group gives, in the order of its ranks.

    Args:
        data: of the same length on all of them.
        group: None = the default one, or this rank alone where there is none.

    Raises:
        RuntimeError: of torch, as from any collective operation.
    """
    if not data or not _is_ready():
        return [data for _ in members(group)]
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device_of(dist, group))
    each = [torch.empty_like(mine) for _ in members(group)]
    dist.all_gather(each, mine, group=group)
    rows = torch.stack(each).cpu()
    return [bytes(row.tolist()) for row in rows]


def gather_texts(text: str, room: int, group: ProcessGroup | None) -> list[str]:
    """Return the text of each rank of a group; what is longer than so many bytes is cut."""
    data = text.encode(errors="replace")[:room].ljust(room, _PAD)
    return [one.decode(errors="ignore").strip() for one in gather(data, group)]


def _is_ready() -> bool:
    return bool(dist.is_available() and dist.is_initialized())
