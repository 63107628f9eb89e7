"""The items of a plan in a data file: where they lie, and copying them there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from undaunted.checkpointing.dcp import digests, sameness
from undaunted.checkpointing.dcp.packed import content_of, is_marked, is_packed
from undaunted.checkpointing.errors import CheckpointError, StateError, StructureError
from undaunted.checkpointing.format.image import (
    DTYPES,
    HEAD_BYTES,
    Frame,
    Image,
    ItemPlace,
    end_of,
    frame,
    place_frames,
    place_others,
)
from undaunted.checkpointing.format.manifest import crc32
from undaunted.checkpointing.memory.arena import HEADER_BYTES, ArenaTooSmallError, aligned
from undaunted.checkpointing.memory.copy import copy_into, view_of

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed.checkpoint.planner import WriteItem

    from undaunted.checkpointing.memory.arena import Arena

    Resolve = Callable[[WriteItem], "torch.Tensor | io.BytesIO"]

# For each item without a frame until its length is known: most are numbers and short texts.
_OTHER_BYTES = 2048
# For the description of a snapshot, without metadata: of all, and for each item without a frame.
_DESCRIPTION_BYTES = 64 << 10
_REPORT_BYTES = 24
# Before an item without a frame, at the most.
_PADDING_BYTES = 72


@dataclass(frozen=True, eq=False)
class Laid:
    """The items of one file and where they lie.

    Attributes:
        name: of the file.
        framed: tensors whose bytes are copied to their place.
        frames: of these.
        places: of these, in the file.
        others: items that are written as ``torch.save`` makes them; their lengths are not known.
    """

    name: str
    framed: list[WriteItem]
    frames: list[Frame]
    places: list[ItemPlace]
    others: list[WriteItem]

    def placed(self, others: Sequence[tuple[int, int]]) -> Iterator[tuple[WriteItem, int, int]]:
        """Return every item with its offset and length, given those of ``others``."""
        for items, places in ((self.framed, self.places), (self.others, others)):
            for item, (offset, length) in zip(items, places, strict=True):
                yield item, offset, length


@dataclass(frozen=True)
class StagedFile:
    """A file that lies in the arena.

    Attributes:
        image: the file.
        others: offset and length in the file of each of ``Laid.others``.
    """

    image: Image
    others: list[ItemPlace]


def lay_out(name: str, items: Sequence[WriteItem]) -> Laid:
    """Decide where the items of a file lie. The same items give the same layout on every rank."""
    frames = [_frame_of(item) for item in items]
    known = [one for one in frames if one is not None]
    return Laid(
        name=name,
        framed=[item for item, one in zip(items, frames, strict=True) if one is not None],
        frames=known,
        places=place_frames(one.length for one in known),
        others=[item for item, one in zip(items, frames, strict=True) if one is None],
    )


def _frame_of(item: WriteItem) -> Frame | None:
    data = item.tensor_data
    if data is None or data.properties.layout != torch.strided or is_marked(data.properties):
        return None
    dtype = str(data.properties.dtype).removeprefix("torch.")
    return frame(dtype, tuple(data.chunk.sizes)) if dtype in DTYPES else None


def arena_bytes(laid: Sequence[Laid], others_bytes: int, beside: int = 0) -> int:
    """Return how large a new arena for these files should be: there is room for objects to grow.

    Args:
        laid: the files.
        others_bytes: how much the items without a frame have together.
        beside: bytes of the snapshot's description besides, such as the metadata.
    """
    count = sum(len(one.others) for one in laid)
    others = max(count * _OTHER_BYTES, others_bytes * 5 // 4 + count * _PADDING_BYTES)
    # The page is for the end of a file.
    files = sum(aligned(end_of(one.places)) + HEADER_BYTES for one in laid)
    return aligned(HEADER_BYTES + files + others + _description_bytes(laid) + beside)


def _description_bytes(laid: Sequence[Laid]) -> int:
    return _DESCRIPTION_BYTES + sum(len(one.others) for one in laid) * _REPORT_BYTES


def others_bytes(laid: Sequence[Laid], resolve: Resolve) -> int:
    """Return how much the items without a frame have together."""
    with torch.no_grad():
        return sum(len(_resolved(item, resolve)) for one in laid for item in one.others)


def stage_items(
    laid: Sequence[Laid],
    resolve: Resolve,
    arena: Arena,
    beside: int = 0,
    arriving: list[Any] | None = None,
) -> list[StagedFile]:
    """Copy the items of all files into the arena: when this returns, their content is fixed.

    Calls ``arena.begin()`` before the first byte changes; ``arena.complete()`` is the caller's.

    Args:
        laid: the files; the same object as at the save before makes this one faster.
        resolve: a planner's ``resolve_data``.
        arena: where to.
        beside: see :func:`arena_bytes`; there is room for it afterwards.
        arriving: see :func:`undaunted.checkpointing.memory.copy.copy_into`.

    Raises:
        ArenaTooSmallError: nothing was copied.
        StateError: an item cannot be saved; nothing was copied.
        StructureError: the planner does not give what its plan says; likewise.
    """
    with torch.no_grad():  # else DTensors make nodes of a graph
        sources = [_sources(one, resolve) for one in laid]
    others = [[_resolved(item, resolve) for item in one.others] for one in laid]
    staged, end = _images(laid, others)
    if end + _description_bytes(laid) + beside > arena.size:
        size = sum(len(content) for of_file in others for content in of_file)
        raise ArenaTooSmallError(arena_bytes(laid, size, beside), arena.size)
    arena.begin()
    views = _prepared(laid, [file.image.offset for file in staged], arena)
    for of_file, tensors in zip(views.of_files, sources, strict=True):
        copy_into(of_file, tensors, arena, arriving)
    for one, file, contents in zip(laid, staged, others, strict=True):
        start = file.image.offset
        end = start + end_of(one.places)
        for (offset, length), content in zip(file.others, contents, strict=True):
            at = start + offset
            arena.memory[end:at] = bytes(at - end)
            end = at + length
            arena.memory[at:end] = content
    return staged


def watch(
    laid: Sequence[Laid],
    staged: Sequence[StagedFile],
    resolve: Resolve,
    arena: Arena,
    content: sameness.Digests,
) -> Callable[[], str]:
    """Note what was copied; return a function that returns the name of an item that has changed.

    The function returns "" if all are in the arena as they are in the state now. It is called
    as long as the arena holds the copy.

    Args:
        laid: as for :func:`stage_items`.
        staged: what that has returned.
        resolve: likewise.
        arena: likewise.
        content: digests of parts that are known already.
    """
    framed = [item for one in laid for item in one.framed]
    unknown = [item for item in framed if sameness.part_of(item) not in content]
    with torch.no_grad():
        found = digests.of_tensors([resolve(item) for item in unknown])
    right = content | dict(zip(map(sameness.part_of, unknown), found, strict=True))
    objects = [
        (str(item.index.fqn), file.image.offset + place.offset, place.length)
        for one, file in zip(laid, staged, strict=True)
        for item, place in zip(one.others, file.others, strict=True)
    ]
    serialised = [crc32(arena.memory[at : at + length]) for _, at, length in objects]

    def changed() -> str:
        views = _prepared(laid, [file.image.offset for file in staged], arena).of_files
        now = digests.of_tensors([view for of_file in views for view in of_file])
        for item, digest in zip(framed, now, strict=True):
            if digest != right[sameness.part_of(item)]:
                return str(item.index.fqn)
        for (name, at, length), checksum in zip(objects, serialised, strict=True):
            if crc32(arena.memory[at : at + length]) != checksum:
                return name
        return ""

    return changed


def prepare(laid: Sequence[Laid], arena: Arena) -> None:
    """Write what does not depend on values, so that the first snapshot takes no longer than others.

    What is in the arena counts for nothing afterwards.
    """
    staged, end = _images(laid, [()] * len(laid))
    if end <= arena.size:
        arena.begin()
        _prepared(laid, [file.image.offset for file in staged], arena)


def _sources(laid: Laid, resolve: Resolve) -> list[torch.Tensor]:
    tensors = []
    for item in laid.framed:
        tensor: Any = resolve(item)
        data = item.tensor_data
        if not isinstance(tensor, torch.Tensor) or is_packed(tensor):
            raise StructureError(
                f"{item.index.fqn} is {type(tensor)}, but its plan says it is an ordinary tensor"
            )
        if tensor.shape != data.chunk.sizes or tensor.dtype != data.properties.dtype:
            raise StructureError(
                f"{item.index.fqn} is {tensor.dtype} {tuple(tensor.shape)}, but its plan says "
                f"{data.properties.dtype} {tuple(data.chunk.sizes)}"
            )
        if tensor.is_meta:
            raise StateError(f"{item.index.fqn} is on the meta device: it has no values to save")
        tensors.append(tensor)
    return tensors


def _resolved(item: WriteItem, resolve: Resolve) -> memoryview:
    try:
        return _serialised(resolve(item))
    except (CheckpointError, OSError, MemoryError):
        raise
    except Exception as error:
        raise StateError(
            f"{item.index.fqn} cannot be saved: {type(error).__name__}: {error}"
        ) from error


def _serialised(value: torch.Tensor | io.BytesIO) -> memoryview:
    if isinstance(value, torch.Tensor):
        return content_of(value)
    return memoryview(value.getvalue())


def _images(
    laid: Sequence[Laid], others: Sequence[Sequence[memoryview]]
) -> tuple[list[StagedFile], int]:
    staged = []
    at = HEADER_BYTES
    for one, contents in zip(laid, others, strict=True):
        places = place_others(one.places, map(len, contents))
        size = end_of(places) if places else end_of(one.places)
        staged.append(StagedFile(Image(one.name, at, size), places))
        at += aligned(size)
    return staged, at


@dataclass(frozen=True, eq=False)
class _Views:
    """Tensors over the places of all items; heads and tails are in place already."""

    laid: Sequence[Laid]
    offsets: list[int]
    of_files: list[list[torch.Tensor]]


def _prepared(laid: Sequence[Laid], offsets: list[int], arena: Arena) -> _Views:
    views = arena.occupant
    if not (isinstance(views, _Views) and views.laid is laid and views.offsets == offsets):
        pairs = zip(laid, offsets, strict=True)
        views = _Views(laid, offsets, [_prepare(one, start, arena) for one, start in pairs])
        arena.occupant = views
    return views


def _prepare(laid: Laid, start: int, arena: Arena) -> list[torch.Tensor]:
    """Write what surrounds the tensors of a file, and zeros between its items."""
    views = []
    offsets = [place.offset for place in laid.places]
    ends = [start + end for end in (*offsets[1:], end_of(laid.places)) if offsets]
    for item, parts, place, until in zip(laid.framed, laid.frames, laid.places, ends, strict=True):
        at = start + place.offset
        arena.memory[at : at + HEAD_BYTES] = parts.head
        tail = at + HEAD_BYTES + parts.size
        arena.memory[tail:until] = parts.tail.ljust(until - tail, b"\0")
        data = item.tensor_data
        views.append(view_of(arena, at + HEAD_BYTES, data.properties.dtype, data.chunk.sizes))
    return views
