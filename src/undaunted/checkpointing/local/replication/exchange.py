"""Shards on their way between ranks: to all peers beside a save, to one rank for a load.

In step ``k`` of a save every rank sends to the one ``k`` places after it and receives from the one
``k`` places before it: a header of fixed length, the image, and the checksums of the image's
blocks, as the sender has written them to its own disk. One image is received at a time, whatever
the size of the group.
"""

from __future__ import annotations

import re
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from undaunted.checkpointing.dcp.torch_private import default_store
from undaunted.checkpointing.errors import CheckpointError, NoCheckpointError, SaveError
from undaunted.checkpointing.local import shard
from undaunted.checkpointing.memory.copy import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.checkpointing.local.selection import Share

_PLACE_IN_SOURCE = re.compile(r"^\[[^\]]*\] *")  # of gloo, at the start of its messages


class PeerError(SaveError):
    """A rank of the group ended, stopped, or sent what cannot be."""


class Group:
    """Some ranks that send each other tensors of host memory; ranks are global.

    Args:
        group: of torch, with these ranks in this order.
        ranks: of all.
        me: this one.
        timeout_s: for every wait, in seconds.
    """

    def __init__(self, group: Any, ranks: Sequence[int], me: int, timeout_s: float) -> None:
        self.ranks = list(ranks)
        self.me = me
        self.timeout_s = timeout_s
        self._group = group

    @classmethod
    def connect(
        cls, store: Any, name: str, ranks: Sequence[int], me: int, timeout_s: float
    ) -> Group:
        """Connect the ranks; nobody else takes part, and `torch.distributed` is not told.

        Args:
            store: a torch store all of them reach.
            name: new for each group, the same on all its ranks.
            ranks: see the class.
            me: see the class.
            timeout_s: for connecting, too.

        Raises:
            PeerError: not all of them came.
        """
        try:
            group = dist.ProcessGroupGloo(
                dist.PrefixStore(f"undaunted/local/{name}", store),
                list(ranks).index(me),
                len(ranks),
                timeout=timedelta(seconds=timeout_s),
            )
        except RuntimeError as error:
            raise PeerError(
                f"ranks {', '.join(map(str, ranks))} could not be connected within {timeout_s:g} "
                f"s: {error}",
                [rank for rank in ranks if rank != me],
            ) from error
        return cls(group, ranks, me, timeout_s)

    @property
    def group(self) -> Any:
        """The group of torch."""
        return self._group

    def isend(self, tensor: torch.Tensor, dst: int) -> Any:
        """Begin to send to a rank; returns the work."""
        return self.group.send([tensor], self.ranks.index(dst), 0)

    def irecv(self, tensor: torch.Tensor, src: int) -> Any:
        """Begin to receive from a rank; returns the work."""
        return self.group.recv([tensor], self.ranks.index(src), 0)

    def wait(self, work: Any, peer: int | None) -> None:
        """Wait for a work.

        Args:
            work: what was begun.
            peer: rank, for the error; None = any.

        Raises:
            PeerError: it failed or was not done in time.
        """
        try:
            work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            who = f"rank {peer}" if peer is not None else f"one of the ranks {self.ranks}"
            reason = _PLACE_IN_SOURCE.sub("", str(error).partition("\n")[0])
            raise PeerError(
                f"{who} has ended, or has not answered within {self.timeout_s:g} s ({reason})",
                [peer] if peer is not None else [],
            ) from error


_MAGIC = 0x554E4441
_VERSION = 1
_NOTHING = -1
_INVALID = "x" * 8
# A long message goes in parts, each with the whole deadline: a slow network is not a dead one.
PART_BYTES = 64 << 20


class Header(NamedTuple):
    """The header before an image.

    Attributes:
        size: of the image in bytes; -1 when the sender has none.
        save: tells which save it belongs to.
        place: tells on which disk the sender keeps it.
    """

    size: int
    save: int
    place: int

    @classmethod
    def of(cls, image: torch.Tensor | None, save: str, place: str = "") -> Header:
        """Return the header of an image."""
        size = _NOTHING if image is None else image.numel()
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
    group: Group,
    mine: Header,
    image: torch.Tensor | None,
    checksums: Callable[[], str | None],
    room: Callable[[int, Header], torch.Tensor],
    received: Callable[[int, torch.Tensor, str], None],
) -> None:
    """Send this rank's image to all others of the group, and take theirs.

    Args:
        group: its ranks all do this at the same time.
        mine: header of the image.
        image: None says that this rank has failed.
        checksums: waits until the image is written here, and returns its checksums; None if it
            is not.
        room: called for each other rank with its header, also if it has no image; returns memory
            for the image. What it raises ends the exchange.
        received: called with the rank, its image and the checksums that this must have.

    Raises:
        PeerError: a rank ended, did not answer in time, or takes part in another save.
    """
    ranks, me = group.ranks, group.ranks.index(group.me)
    for step in range(1, len(ranks)):
        to, source = ranks[(me + step) % len(ranks)], ranks[(me - step) % len(ranks)]
        theirs = _swap(group, mine, to, source)
        if theirs.save != mine.save:
            raise PeerError(f"rank {source} takes part in another save than this one", [source])
        memory = room(source, theirs)[: max(theirs.size, 0)]
        coming = [group.irecv(part, source) for part in _parts(memory)]
        going = [] if image is None else [group.isend(part, to) for part in _parts(image)]
        for work in coming:
            group.wait(work, source)
        for work in going:
            group.wait(work, to)
        crc32 = _swap_checksums(group, image, checksums, to, source, theirs.size)
        if crc32 is not None:
            received(source, memory, crc32)


def fetch(
    choice: Share,
    me: int,
    name: str,
    read: Callable[[int], tuple[torch.Tensor, str]],
    timeout_s: float,
) -> dict[int, torch.Tensor]:
    """Carry out the transfers of a choice; those who have no part in them return at once.

    Args:
        choice: its transfers are the same on all ranks that have a part in them.
        me: global rank.
        name: new, the same on all ranks.
        read: returns a rank's shard, which this rank has, and its checksums.
        timeout_s: for every wait.

    Returns:
        The shards this rank has received, by the rank whose they are.

    Raises:
        CheckpointError: what it should send is damaged, a peer did not answer, or had nothing.
        OSError: what it should send cannot be read.
    """
    ranks = sorted({rank for move in choice.transfers for rank in (move.sender, move.receiver)})
    if me not in ranks:
        return {}
    group = Group.connect(default_store(), name, ranks, me, timeout_s)
    received: dict[int, torch.Tensor] = {}
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
            image = receive(group, move.sender, choice.save)
            if image is None:
                failed = NoCheckpointError(f"rank {move.sender} found its copy damaged")
            else:
                received[move.shard] = image
    if failed is not None:
        raise failed
    return received


def send(group: Group, to: int, image: torch.Tensor | None, crc32: str, save: str) -> None:
    """Send a shard to a rank.

    Args:
        group: of both.
        to: who gets it.
        image: None says that there is none.
        crc32: checksums of its blocks.
        save: which save it is from.

    Raises:
        PeerError: it did not get there.
    """
    messages = [Header.of(image, save).message()]
    if image is not None:
        messages += [*_parts(image), _sent(crc32)]
    works = [group.isend(message, to) for message in messages]
    for work in works:
        group.wait(work, to)


def receive(group: Group, source: int, save: str) -> torch.Tensor | None:
    """Return the shard that a rank sends; None when it has none.

    Raises:
        PeerError: nothing came.
        DamagedCheckpointError: it arrived changed.
    """
    mine = Header.of(None, save)
    message = torch.zeros_like(mine.message())
    group.wait(group.irecv(message, source), source)
    header = Header.read(message, source)
    if header.size < 0:
        return None
    image = torch.empty(header.size, dtype=torch.uint8)
    checksums = torch.zeros(_checksum_bytes(header.size), dtype=torch.uint8)
    for work in [group.irecv(part, source) for part in [*_parts(image), checksums]]:
        group.wait(work, source)
    if header.save != mine.save:
        raise shard.damaged(f"the shard from rank {source}", "is of another save")
    if shard.block_checksums(memory_of(image)) != _text(checksums):
        raise shard.damaged(f"the shard from rank {source}", "the bytes arrived changed")
    return image


def _swap(group: Group, mine: Header, to: int, source: int) -> Header:
    theirs, ours = torch.zeros_like(mine.message()), mine.message()
    works = [(group.irecv(theirs, source), source), (group.isend(ours, to), to)]
    for work, peer in works:
        group.wait(work, peer)
    return Header.read(theirs, source)


def _swap_checksums(
    group: Group,
    image: torch.Tensor | None,
    checksums: Callable[[], str | None],
    to: int,
    source: int,
    size: int,
) -> str | None:
    """Return the checksums of what was received; None if its sender has not written it."""
    theirs = torch.zeros(_checksum_bytes(max(size, 0)), dtype=torch.uint8)
    coming = group.irecv(theirs, source) if size > 0 else None
    if image is not None:
        crc32 = checksums()
        text = _INVALID * (_checksum_bytes(image.numel()) // 8) if crc32 is None else crc32
        group.wait(group.isend(_sent(text), to), to)
    if coming is None:
        return None
    group.wait(coming, source)
    return None if _text(theirs).startswith(_INVALID) else _text(theirs)


def _checksum_bytes(size: int) -> int:
    return -(-size // shard.BLOCK_BYTES) * 8


def _sent(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _text(received: torch.Tensor) -> str:
    return bytes(received.tolist()).decode("ascii", "replace")


def _parts(image: torch.Tensor) -> list[torch.Tensor]:
    """Return the parts in which an image is sent."""
    return list(image.split(PART_BYTES)) if image.numel() else []
