"""One flat shard from one rank to another, when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from undaunted.checkpointing.local import flat, shard
from undaunted.checkpointing.local.replication.exchange import Header, parts

if TYPE_CHECKING:
    from undaunted.checkpointing.local.replication.group_utils import GroupWrapper


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
    if shard.block_checksums(flat.memory_of(image)) != crc32:
        raise shard.damaged(f"the shard from rank {source}", "the bytes arrived changed")
    return image
