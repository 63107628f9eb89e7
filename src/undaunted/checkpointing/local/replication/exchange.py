"""Each rank of a group gets the flat shards of all others, beside training.

In step ``k`` every rank sends to the one ``k`` places after it and receives from the one ``k``
places before it: a header of fixed length, the image, and the checksums of the image's blocks, as
the sender has written them to its own disk. One image is received at a time, whatever the size of
the group.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from undaunted.checkpointing.local import shard
from undaunted.checkpointing.local.replication.group_utils import GroupWrapper, PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = 0x554E4441
_VERSION = 1
_NOTHING = -1
_INVALID = "x" * 8
# A long message goes in parts, each with the whole deadline: a slow network is not a dead one.
PART_BYTES = 64 << 20


class Outgoing(Protocol):
    """What this rank sends to all others."""

    image: torch.Tensor | None

    def checksums(self) -> str | None:
        """Wait until the image is written here, and return its checksums; None if it is not."""


class Incoming(Protocol):
    """What becomes of what others send."""

    def room(self, size: int) -> torch.Tensor:
        """Return memory for an image of this many bytes."""

    def received(self, rank: int, image: torch.Tensor, crc32: str) -> None:
        """Take the image of a global rank, which must have these checksums."""


class Header(NamedTuple):
    """What comes before an image.

    Attributes:
        size: of the image in bytes; -1 when the sender has none.
        save: tells which save it belongs to.
        place: tells on which disk the sender keeps it.
    """

    size: int
    save: int
    place: int

    @classmethod
    def of(cls, size: int, save: str, place: str) -> Header:
        """Return the header of an image."""
        return cls(size, zlib.crc32(save.encode()), zlib.crc32(place.encode()))

    def message(self) -> torch.Tensor:
        """Return what is sent."""
        return torch.tensor([_MAGIC, _VERSION, *self])

    @classmethod
    def read(cls, message: torch.Tensor, rank: int) -> Header:
        """Read what was received.

        Raises:
            PeerError: it is not a header.
        """
        magic, version, *rest = message.tolist()
        header = cls(*rest)
        if (magic, version) != (_MAGIC, _VERSION):
            raise PeerError(
                f"rank {rank} sends something else, or runs another version of undaunted", [rank]
            )
        if not _NOTHING <= header.size <= shard.MAX_IMAGE_BYTES:
            raise PeerError(f"rank {rank} announced {header.size} bytes", [rank])
        return header


def exchange(
    group: GroupWrapper, outgoing: Outgoing, incoming: Incoming, save: str, place: str = ""
) -> Iterator[tuple[int, Header]]:
    """Send this rank's image to all others of the group, and take theirs.

    Args:
        group: its ranks all do this at the same time.
        outgoing: an image of None says that this rank has failed.
        incoming: see there.
        save: the same on all ranks.
        place: see `Header`.

    Yields:
        Each other rank with its header, before its image is received: the place to object.

    Raises:
        PeerError: a rank ended, did not answer in time, or takes part in another save.
    """
    ranks, me = group.ranks, group.my_group_rank
    image = outgoing.image
    mine = Header.of(_NOTHING if image is None else image.numel(), save, place)
    for step in range(1, len(ranks)):
        to, source = ranks[(me + step) % len(ranks)], ranks[(me - step) % len(ranks)]
        their = _swap(group, mine, to, source)
        if their.save != mine.save:
            raise PeerError(f"rank {source} takes part in another save than this one", [source])
        yield source, their
        room = incoming.room(their.size)[: their.size] if their.size >= 0 else None
        coming = [] if room is None else [group.irecv(part, source) for part in parts(room)]
        going = [] if image is None else [group.isend(part, to) for part in parts(image)]
        for work in coming:
            group.wait(work, source)
        for work in going:
            group.wait(work, to)
        crc32 = _swap_checksums(group, outgoing, to, source, their.size)
        if room is not None and crc32 is not None:
            incoming.received(source, room, crc32)


def _swap(group: GroupWrapper, mine: Header, to: int, source: int) -> Header:
    theirs, ours = torch.zeros_like(mine.message()), mine.message()
    works = [(group.irecv(theirs, source), source), (group.isend(ours, to), to)]
    for work, peer in works:
        group.wait(work, peer)
    return Header.read(theirs, source)


def _swap_checksums(
    group: GroupWrapper, outgoing: Outgoing, to: int, source: int, size: int
) -> str | None:
    """Return the checksums of what was received; None if its sender has not written it."""
    theirs = torch.zeros(_checksum_bytes(max(size, 0)), dtype=torch.uint8)
    coming = group.irecv(theirs, source) if size > 0 else None
    if outgoing.image is not None:
        crc32 = outgoing.checksums()
        text = _INVALID * (_checksum_bytes(outgoing.image.numel()) // 8) if crc32 is None else crc32
        ours = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        group.wait(group.isend(ours, to), to)
    if coming is None:
        return None
    group.wait(coming, source)
    text = bytes(theirs.tolist()).decode("ascii", "replace")
    return None if text.startswith(_INVALID) else text


def _checksum_bytes(size: int) -> int:
    return -(-size // shard.BLOCK_BYTES) * 8


def parts(image: torch.Tensor) -> list[torch.Tensor]:
    """Return the parts in which an image is sent."""
    return list(image.split(PART_BYTES))
