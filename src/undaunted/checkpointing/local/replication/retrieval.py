"""Shards that are not where they are needed: from those who have them to those who load them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from undaunted.checkpointing.dcp.torch_private import default_store
from undaunted.checkpointing.errors import CheckpointError, NoCheckpointError
from undaunted.checkpointing.local import shard
from undaunted.checkpointing.local.replication.exchange import Header, parts
from undaunted.checkpointing.local.replication.group_utils import GroupWrapper, open_group
from undaunted.checkpointing.staging.copy import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
            send(group, move.receiver, image, crc32, choice.save)
        elif move.receiver == me:
            received = receive(group, move.sender, choice.save)
            if received is None:
                failed = NoCheckpointError(f"rank {move.sender} found its copy damaged")
    if failed is not None:
        raise failed
    return received


def send(group: GroupWrapper, to: int, image: torch.Tensor | None, crc32: str, save: str) -> None:
    """Send a shard to a global rank.

    Args:
        group: of both.
        to: who gets it.
        image: None says that there is none.
        crc32: checksums of its blocks.
        save: which save it is from.

    Raises:
        PeerError: it did not get there.
    """
    size = -1 if image is None else image.numel()
    messages = [Header.of(size, save, "").message()]
    if image is not None:
        checksums = torch.frombuffer(bytearray(crc32.encode()), dtype=torch.uint8)
        messages += [*parts(image), checksums]
    works = [group.isend(message, to) for message in messages]
    for work in works:
        group.wait(work, to)


def receive(group: GroupWrapper, source: int, save: str) -> torch.Tensor | None:
    """Return the shard that a global rank sends; None when it has none.

    Raises:
        PeerError: nothing came.
        DamagedCheckpointError: it arrived changed.
    """
    message = torch.zeros_like(Header.of(0, save, "").message())
    group.wait(group.irecv(message, source), source)
    header = Header.read(message, source)
    if header.size < 0:
        return None
    image = torch.empty(header.size, dtype=torch.uint8)
    checksums = torch.zeros(-(-header.size // shard.BLOCK_BYTES) * 8, dtype=torch.uint8)
    for work in [group.irecv(part, source) for part in [*parts(image), checksums]]:
        group.wait(work, source)
    crc32 = bytes(checksums.tolist()).decode("ascii", "replace")
    if header.save != Header.of(0, save, "").save:
        raise shard.damaged(f"the shard from rank {source}", "is of another save")
    if shard.block_checksums(memory_of(image)) != crc32:
        raise shard.damaged(f"the shard from rank {source}", "the bytes arrived changed")
    return image
