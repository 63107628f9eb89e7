"""Shards that are not where they are needed: from those who have them to those who load them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.checkpointing.dcp.torch_private import default_store
from undaunted.checkpointing.errors import CheckpointError, NoCheckpointError
from undaunted.checkpointing.local.replication import transfer
from undaunted.checkpointing.local.replication.group_utils import GroupWrapper, open_group

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from undaunted.checkpointing.local.selection import Choice


def carry_out(
    choice: Choice,
    me: int,
    name: str,
    read: Callable[[int], tuple[torch.Tensor, str]],
    timeout_s: float,
) -> torch.Tensor | None:
    """Carry out the transfers of a choice; those who have no part in them return at once.

    Args:
        choice: the same on all ranks.
        me: global rank.
        name: new, the same on all ranks.
        read: returns a rank's shard, which this rank has, and its checksums.
        timeout_s: for every wait.

    Returns:
        The shard this rank has received; None when it needs none.

    Raises:
        CheckpointError: what it should send is damaged, a peer did not answer, or had nothing.
        OSError: what it should send cannot be read.
    """
    ranks = sorted({rank for move in choice.transfers for rank in (move.sender, move.receiver)})
    if me not in ranks:
        return None
    opened = open_group(default_store(), name, ranks, me, timeout_s)
    group = GroupWrapper(opened, ranks=ranks, timeout_s=timeout_s)
    received: torch.Tensor | None = None
    failed: Exception | None = None
    for move in choice.transfers:
        if move.sender == me:
            image, crc32 = None, ""
            try:
                image, crc32 = read(move.shard)
            except (CheckpointError, OSError) as error:
                failed = error  # the receiver is told, and the transfers after it go on
            transfer.send(group, move.receiver, image, crc32, choice.save)
        elif move.receiver == me:
            received = transfer.receive(group, move.sender, choice.save)
            if received is None:
                failed = NoCheckpointError(f"rank {move.sender} found its copy damaged")
    if failed is not None:
        raise failed
    return received
