"""What has to be read from which file, and where it goes, to fill a state from a checkpoint."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.tensor import DTensor

from undaunted.checkpointing.dcp.objects import load_object
from undaunted.checkpointing.dcp.packed import is_packed, refill
from undaunted.checkpointing.dcp.repeated import Loaded
from undaunted.checkpointing.dcp.torch_private import says_parts, whole_shape
from undaunted.checkpointing.errors import (
    CheckpointError,
    DamagedCheckpointError,
    StructureError,
)
from undaunted.checkpointing.format.frame import DTYPES, HEAD_BYTES, frame
from undaunted.checkpointing.memory.copy import memory_of
from undaunted.checkpointing.memory.layout import is_framed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata
    from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

    from undaunted.checkpointing.dcp.sources import Source

# Begin and end in each dimension.
_Box = list[tuple[int, int]]

# How many names a message lists.
_NAMED = 10


class Read(NamedTuple):
    """Bytes of a file that are wanted.

    Attributes:
        file: relative to the checkpoint.
        offset: in the file.
        length: bytes.
        memory: where they go; None when they cannot go straight to their place.
        use: called with them when there is no ``memory``.
        whole: of a tensor that each rank has as a whole, or an object: all ranks read it.
    """

    file: str
    offset: int
    length: int
    memory: memoryview | None
    use: Callable[[bytearray], None] | None
    whole: bool = False


@dataclass
class _Chunk:
    """A part of tensors that are distributed in the same way, and where it was found last."""

    wanted: ChunkStorageMetadata
    hint: int = 0

    def among(self, chunks: list[ChunkStorageMetadata]) -> ChunkStorageMetadata | None:
        if not (self.hint < len(chunks) and chunks[self.hint] == self.wanted):
            found = (at for at, chunk in enumerate(chunks) if chunk == self.wanted)
            self.hint = next(found, len(chunks))
        return chunks[self.hint] if self.hint < len(chunks) else None


class Reads:
    """Makes the reads for one state."""

    def __init__(
        self,
        planner: LoadPlanner,
        metadata: Metadata,
        source: Source,
        place: Callable[[str, Any], None],
    ) -> None:
        """Nothing is read or changed yet.

        Args:
            planner: of torch; it knows the state.
            metadata: of the checkpoint.
            source: of the files.
            place: called with name and value of each object, and of each tensor that is made here.
        """
        self._planner = planner
        self._metadata = metadata
        self._path = source.path
        self._framed = source.framed
        self._place = place
        self._storage: dict[MetadataIndex, Any] = metadata.storage_data
        self._chunks: dict[Any, _Chunk] = {}
        self._loaded = Loaded()

    def of(self, state_dict: dict[str, Any]) -> list[Read]:
        """Return what has to be read for a flat state.

        Args:
            state_dict: tensors to fill, and None for what is made here.

        Raises:
            StructureError: the checkpoint does not have what the state needs.
            DamagedCheckpointError: the metadata contradict themselves.
        """
        known = self._metadata.state_dict_metadata
        reads: list[Read] = []
        for name, value in state_dict.items():
            stored = known[name]
            if not isinstance(stored, TensorStorageMetadata):
                reads.append(self._object(name))
            elif value is None:
                reads += self._new(name, stored)
            elif (shape := whole_shape(value)) != stored.size:
                raise StructureError(
                    f"{self._path}: {name} was saved as {tuple(stored.size)}, the state has "
                    f"{tuple(shape)} there"
                )
            elif _is_whole(value, stored):
                reads += self._chunk(name, stored, stored.chunks[0], value, value)
            elif (chunk := self._own_chunk(value, stored)) is not None:
                reads += self._chunk(name, stored, chunk, value.to_local(), value)
            else:
                reads += self._resharded(name, stored, value)
        return reads

    def _new(self, name: str, stored: TensorStorageMetadata) -> list[Read]:
        """A tensor, whole, that the state does not have."""
        chunk = stored.chunks[0]
        index = MetadataIndex(name, chunk.offsets)
        if chunk.sizes == stored.size and not self._is_framed(self._info(index)):
            return [self._object(name, index)]
        tensor = torch.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
        self._planner.state_dict[name] = tensor
        self._place(name, tensor)
        return self.of({name: tensor})

    def _is_framed(self, info: Any) -> bool:
        return self._framed and is_framed(info.offset)

    def _object(self, name: str, index: MetadataIndex | None = None) -> Read:
        info = self._info(index or MetadataIndex(name))
        path = f"{self._path}/{info.relative_path}"
        return Read(
            info.relative_path,
            info.offset,
            info.length,
            None,
            lambda content: self._place(name, self._loaded.load(content, name, path)),
            whole=True,
        )

    def _own_chunk(self, value: Any, stored: TensorStorageMetadata) -> ChunkStorageMetadata | None:
        """The chunk that is exactly this rank's part of the tensor, if there is one."""
        if not isinstance(value, DTensor):
            return None
        if hasattr(value.to_local(), "__create_chunk_list__"):  # it says itself which parts it has
            return None
        key = (id(value.device_mesh), value.placements, value.shape)
        known = self._chunks.get(key)
        if known is None:
            if value.device_mesh.get_coordinate() is None:
                return None
            (wanted,) = value.__create_chunk_list__()
            known = self._chunks[key] = _Chunk(wanted)
        return known.among(stored.chunks)

    def _resharded(self, name: str, stored: TensorStorageMetadata, value: Any) -> Iterator[Read]:
        """Torch says which part of which chunk goes where."""
        plan = create_default_local_load_plan({name: value}, self._metadata)
        self._check_covered(name, value, plan.items)
        for item in plan.items:
            assert item.type == LoadItemType.TENSOR
            chunk = _chunk_of(stored, item)
            target = self._planner.resolve_tensor(item)
            offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
            yield from self._chunk(name, stored, chunk, target, None, offsets, lengths)

    def _check_covered(self, name: str, value: Any, items: Sequence[ReadItem]) -> None:
        """Raise an error if the checkpoint does not have all of this rank's part of a tensor."""
        wanted, there = _size_here(value), sum(math.prod(item.lengths) for item in items)
        if there > wanted:  # parts of other programs' checkpoints may overlap
            there = _covered(items)
        if there != wanted:
            raise DamagedCheckpointError(
                f"{self._path}/.metadata: {name} is not whole: the checkpoint has {there} of "
                f"{wanted} values of it that this rank needs. Perhaps not all ranks have saved it",
                self._path,
                [name],
            )

    def _chunk(
        self,
        name: str,
        stored: TensorStorageMetadata,
        chunk: ChunkStorageMetadata,
        target: torch.Tensor,
        value: Any,
        offsets: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[Read]:
        """Read a part of a chunk, by default all of it, to a tensor of the same shape.

        The whole chunk is for all that this rank has of ``value``; a part is for a part of it.
        """
        if not target.numel():
            return []
        info = self._info(MetadataIndex(name, chunk.offsets))
        sizes, dtype = tuple(chunk.sizes), stored.properties.dtype
        lengths = tuple(lengths or sizes)
        rest = tuple(offsets or (0,) * len(sizes))
        if not self._is_framed(info):
            return [self._serialised(name, info, target, value, rest, lengths)]
        start = info.offset + HEAD_BYTES
        length = math.prod(lengths) * dtype.itemsize
        if _frame_length(dtype, sizes) != info.length:
            raise DamagedCheckpointError(
                f"{self._path}/.metadata: {name} has a wrong length", self._path, [name]
            )
        if sizes:  # the rows of the first dimension lie one after the other
            row = math.prod(sizes[1:]) * dtype.itemsize
            start += rest[0] * row
            length = lengths[0] * row
            sizes, rest = (lengths[0], *sizes[1:]), (0, *rest[1:])
        memory = _memory_of(target, dtype) if sizes == lengths else None
        if memory is not None:
            return [Read(info.relative_path, start, length, memory, None, target is value)]

        def use(content: bytearray) -> None:
            tensor = torch.frombuffer(content, dtype=dtype).view(sizes)
            if is_packed(target):
                self._put(name, value, target, tensor)
            else:
                _copy(tensor, target, rest, lengths)

        return [Read(info.relative_path, start, length, None, use, target is value)]

    def _serialised(
        self,
        name: str,
        info: Any,
        target: torch.Tensor,
        value: Any,
        offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> Read:
        """A tensor that ``torch.save`` has written."""
        path = f"{self._path}/{info.relative_path}"

        def use(content: bytearray) -> None:
            tensor = load_object(content, name, path)
            if is_packed(tensor) or is_packed(target):
                self._put(name, value, target, tensor)
            else:
                _copy(tensor, target, offsets, lengths)

        return Read(info.relative_path, info.offset, info.length, None, use, target is value)

    def _put(self, name: str, value: Any, target: torch.Tensor, tensor: torch.Tensor) -> None:
        """Have a packed tensor back as it was saved: none becomes one of another class."""
        if value is None or tensor.shape != target.shape:
            raise CheckpointError(
                f"{self._path}: {name} was saved as {type(tensor).__name__} and is "
                f"{type(target).__name__} here, of which no part can be taken: load it whole, or "
                "distributed as it was saved"
            )
        if refill(target, tensor):
            return
        tensor = tensor.to(target.device)
        if isinstance(value, DTensor):
            mesh, placements = value.device_mesh, value.placements
            shape, stride = value.shape, value.stride()
            self._place(
                name,
                DTensor.from_local(
                    tensor, mesh, placements, run_check=False, shape=shape, stride=stride
                ),
            )
        else:
            self._place(name, tensor)

    def _info(self, index: MetadataIndex) -> Any:
        info = self._storage.get(index)
        if info is None:
            raise DamagedCheckpointError(
                f"{self._path}/.metadata does not say where {index.fqn} is", self._path, [index.fqn]
            )
        if getattr(info, "transform_descriptors", None):
            raise CheckpointError(
                f"{self._path}: {index.fqn} was written through the extensions "
                f"{', '.join(info.transform_descriptors)}, which are not supported: load it with "
                "torch.distributed.checkpoint"
            )
        return info


def _is_whole(value: torch.Tensor, stored: TensorStorageMetadata) -> bool:
    """Whether the tensor is here in one piece, and in the checkpoint as well."""
    return (
        len(stored.chunks) == 1
        and stored.chunks[0].sizes == stored.size
        and not hasattr(value, "__create_chunk_list__")
        and not hasattr(value, "local_shards")
        and not says_parts(value)
    )


def _size_here(value: Any) -> int:
    """How many values of a tensor this rank has."""
    if isinstance(value, DTensor) and value.device_mesh.get_coordinate() is None:
        return 0
    if hasattr(value, "__create_chunk_list__"):
        return sum(math.prod(chunk.sizes) for chunk in value.__create_chunk_list__())
    if hasattr(value, "local_shards"):
        return sum(shard.tensor.numel() for shard in value.local_shards())
    if says_parts(value):
        return sum(map(math.prod, value.local_sizes))
    return int(value.numel())


def _covered(items: Iterable[ReadItem]) -> int:
    """How many values of a tensor are read, if each is counted once."""
    of_chunks: dict[Any, list[_Box]] = {}
    for item in items:
        pairs = zip(item.dest_offsets, item.lengths, strict=True)
        box = [(offset, offset + length) for offset, length in pairs]
        of_chunks.setdefault(item.dest_index, []).append(box)
    return sum(map(_volume, of_chunks.values()))


def _volume(boxes: list[_Box]) -> int:
    """The volume of the union of boxes: cut where any of them begins or ends, slice by slice."""
    if not boxes or not boxes[0]:
        return len(boxes[:1])
    ends = sorted({end for box in boxes for end in box[0]})
    return sum(
        (end - start) * _volume([box[1:] for box in boxes if box[0][0] <= start < box[0][1]])
        for start, end in itertools.pairwise(ends)
    )


def _chunk_of(stored: TensorStorageMetadata, item: ReadItem) -> ChunkStorageMetadata:
    hint = item.storage_index.index
    assert hint is not None  # create_read_items_for_chunk_list gives it
    return stored.chunks[hint]


@functools.lru_cache(maxsize=4096)
def _frame_length(dtype: torch.dtype, sizes: tuple[int, ...]) -> int:
    name = str(dtype).removeprefix("torch.")
    return frame(name, sizes).length if name in DTYPES else -1


def _memory_of(target: torch.Tensor, dtype: torch.dtype) -> memoryview | None:
    """The memory of a tensor that can be filled with bytes as they are."""
    if not target.is_cpu or target.dtype != dtype or not target.is_contiguous():
        return None
    if (
        target.is_conj()
        or target.is_neg()
        or type(target) not in (torch.Tensor, torch.nn.Parameter)
    ):
        return None
    return memory_of(target)


def _copy(
    whole: torch.Tensor, target: torch.Tensor, offsets: Sequence[int], lengths: Sequence[int]
) -> None:
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        if length != whole.shape[dimension]:
            whole = whole.narrow(dimension, offset, length)
    with torch.no_grad():
        target.copy_(whole)


def listed(names: list[str]) -> str:
    """Return names for a message, not too many of them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
