"""The one reader of checkpoints, as torch's loading wants it, its sources, and its planner.

`torch.distributed.checkpoint.load` can be given the reader with any planner of torch's; loads of
our own call both without it.
"""

from __future__ import annotations

import errno
import functools
import io
import itertools
import math
import operator
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, StorageReader
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.tensor import DTensor

from undaunted.checkpointing.dcp import metadata as metadata_file
from undaunted.checkpointing.dcp.objects import ORDINARY, LoadedValues, load_object
from undaunted.checkpointing.dcp.packed import is_packed, refill
from undaunted.checkpointing.dcp.torch_private import says_parts, whole_shape
from undaunted.checkpointing.errors import (
    CheckpointError,
    DamagedCheckpointError,
    StructureError,
)
from undaunted.checkpointing.files.reading import (
    AT_ONCE_BYTES,
    DamagedBlock,
    Piece,
    Unreadable,
    Wanted,
    in_batches,
    read_files,
)
from undaunted.checkpointing.format.image import DTYPES, HEAD_BYTES, frame, is_framed
from undaunted.checkpointing.memory.copy import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import LoadPlanner

    from undaunted.checkpointing.files.storage import Readable
    from undaunted.checkpointing.format.manifest import File, Manifest


class Source(Protocol):
    """The files of one checkpoint.

    Attributes:
        path: of the checkpoint.
        framed: whether tensors have the frames of our format.
        block_bytes: of what has one checksum.
    """

    path: str
    framed: bool
    block_bytes: int

    def size(self, file: str) -> int:
        """Return how long a file is; a DamagedCheckpointError when it is not there."""

    def read(self, pieces: Mapping[str, Sequence[Piece]], shared: Collection[str] = ()) -> None:
        """Fill all destinations.

        Args:
            pieces: by file, relative to the checkpoint.
            shared: the files of which other ranks of this machine read most of the same.

        Raises:
            DamagedCheckpointError: that cannot be done, or the content is wrong; the names of
                tensors are not known here.
            OSError: something else is wrong with the storage.
        """


class Verified:
    """A checkpoint of our own: every block is checked. See `Source`."""

    framed = True

    def __init__(
        self, storage: Readable, manifest: Manifest, threads: int, progress: Callable[[int], None]
    ) -> None:
        """Nothing is opened yet."""
        self.path = storage.locate(manifest.step)
        self.block_bytes = manifest.block_bytes
        self._storage = storage
        self._manifest = manifest
        self._threads = threads
        self._progress = progress

    def size(self, file: str) -> int:
        """See `Source.size`."""
        return self._listed(file).size

    def read(self, pieces: Mapping[str, Sequence[Piece]], shared: Collection[str] = ()) -> None:
        """See `Source.read`."""
        step, files = self._manifest.step, list(pieces)
        wanted = [
            Wanted(
                partial(self._storage.open, step, file, shared=file in shared),
                self._listed(file),
                pieces[file],
            )
            for file in files
        ]
        try:
            read_files(wanted, self.block_bytes, self._threads, self._progress)
        except DamagedBlock as damaged:
            file = files[damaged.file]
            path = f"{self.path}/{file}"
            start = damaged.block * self.block_bytes
            end = min(start + self.block_bytes, self._listed(file).size)
            raise DamagedCheckpointError(
                f"{path}: block {damaged.block} (bytes {start} to {end}) is not what was written",
                path,
                block=damaged.block,
            ) from damaged
        except Unreadable as failed:
            _raise_damage(failed.error, f"{self.path}/{files[failed.file]}")
            raise failed.error from None

    def _listed(self, file: str) -> File:
        listed = self._manifest.files.get(file)
        if listed is None:
            path = f"{self.path}/{file}"
            raise DamagedCheckpointError(f"{path} is not in the manifest", path)
        return listed


class Foreign:
    """A folder that ``torch.distributed.checkpoint`` has written: nothing can be checked."""

    framed = False
    block_bytes = 0

    def __init__(self, folder: str, progress: Callable[[int], None] = lambda _: None) -> None:
        """Nothing is opened yet."""
        self.path = folder
        self._progress = progress

    def size(self, file: str) -> int:
        """See `Source.size`."""
        path = self._place(file)
        try:
            return path.stat().st_size
        except OSError as error:
            _raise_damage(error, str(path))
            raise

    def read(self, pieces: Mapping[str, Sequence[Piece]], shared: Collection[str] = ()) -> None:  # noqa: ARG002
        """See `Source.read`; it goes through the page cache in any case."""
        for file, wanted in pieces.items():
            path = self._place(file)
            try:
                stream = path.open("rb")
            except (ValueError, OSError) as error:
                _raise_damage(error, str(path))
                raise
            with stream:
                for piece in wanted:
                    try:
                        complete = _filled(stream, piece)
                    except (ValueError, OSError) as error:
                        _raise_damage(error, str(path))
                        raise
                    if not complete:
                        raise DamagedCheckpointError(f"{path} is cut short", str(path))
                    self._progress(len(piece.destination))

    def _place(self, file: str) -> Path:
        path = Path(self.path, file)
        if path.parent != Path(self.path):
            raise DamagedCheckpointError(f"{path} is not in the checkpoint's folder", str(path))
        return path


def _filled(stream: BinaryIO, piece: Piece) -> bool:
    stream.seek(piece.offset)
    count: int = stream.readinto(piece.destination)  # type: ignore[attr-defined]
    return count == len(piece.destination)


def _raise_damage(error: ValueError | OSError, path: str) -> None:
    """Raise what is wrong with a file itself; other errors of a storage say nothing of it."""
    if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.EIO):
        return
    raise DamagedCheckpointError(f"{path} cannot be read: {error}", path) from error


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
        use: called when they are read, with the bytes if there is no ``memory``; None = not called.
        shared: other ranks read them too.
    """

    file: str
    offset: int
    length: int
    memory: memoryview | None
    use: Callable[[bytearray], None] | None
    shared: bool = False


@dataclass(slots=True)
class _Here:
    """The parts that are here of tensors that are distributed alike.

    Attributes:
        parts: of each of them.
        at: which of the parts that were saved was the only one here, when that was asked last.
    """

    parts: list[ChunkStorageMetadata]
    at: int = 0

    def is_at(self, saved: Sequence[ChunkStorageMetadata]) -> bool:
        """Return whether what is here is that part again, and nothing else."""
        return len(self.parts) == 1 and self.at < len(saved) and saved[self.at] == self.parts[0]


class Reader(StorageReader):  # type: ignore[misc]  # torch: no types
    """Reads one checkpoint; every block of one of ours is checked."""

    def __init__(
        self, source: Source, *, beside: bool = False, expect: Callable[[int], None] | None = None
    ) -> None:
        """Nothing is opened yet.

        Args:
            source: the files.
            beside: other ranks may be on this machine.
            expect: called with the number of bytes that are going to be read.
        """
        self._source = source
        self._beside = beside
        self._expect = expect
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: which checkpoint it is has been said."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        """Return False: torch cannot make one from a path alone."""
        return False

    def read_metadata(self) -> Metadata:
        """Read what the checkpoint has.

        Raises:
            DamagedCheckpointError: it is no metadata, or not what was written.
        """
        name = metadata_file.NAME
        content = bytearray(self._source.size(name))
        self._source.read({name: [Piece(0, memoryview(content))]})
        return metadata_file.decode(content, f"{self._source.path}/{name}")

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool = True) -> None:  # noqa: ARG002
        """Take the metadata."""
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Fill what a plan names; all is done when this returns.

        Memory besides that of the tensors is bounded.

        Raises:
            DamagedCheckpointError: a block is not what was written; names the tensors and objects
                in it. Or the metadata contradict themselves.
            CheckpointError: something cannot be filled with what was saved.
            OSError: a file cannot be read.
        """
        assert self._metadata is not None
        with torch.no_grad():  # else DTensors make nodes of a graph
            reads = self._reads(plan.items, planner)
            if self._expect is not None:
                self._expect(sum(read.length for read in reads))
            reads.sort(key=lambda read: (read.file, read.offset))
            shared = _shared(reads) if self._beside else frozenset()
            for batch in in_batches(reads, _own_bytes, AT_ONCE_BYTES):
                self._read(batch, shared)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _reads(self, items: Iterable[ReadItem], planner: LoadPlanner) -> list[Read]:
        try:
            return [read for item in items if (read := self._read_of(item, planner)) is not None]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._contradiction(f"contradicts itself: {error}") from error

    def _read(self, reads: Sequence[Read], shared: frozenset[str]) -> None:
        contents = [bytearray(read.length if read.memory is None else 0) for read in reads]
        pieces: dict[str, list[Piece]] = {}
        for read, content in zip(reads, contents, strict=True):
            memory = memoryview(content) if read.memory is None else read.memory
            pieces.setdefault(read.file, []).append(Piece(read.offset, memory))
        try:
            self._source.read(pieces, shared)
        except DamagedCheckpointError as damaged:
            if damaged.block is None:
                raise
            raise self._named(damaged, damaged.block) from damaged
        for read, content in zip(reads, contents, strict=True):
            if read.use is not None:
                read.use(content)

    def _named(self, damaged: DamagedCheckpointError, block: int) -> DamagedCheckpointError:
        """Say which tensors and objects are in a damaged block."""
        file, size = damaged.path.removeprefix(f"{self._source.path}/"), self._source.block_bytes
        names = names_in(self._metadata, file, block * size, (block + 1) * size)
        message = f"{damaged}; it has {listed(names)}" if names else str(damaged)
        return DamagedCheckpointError(message, damaged.path, names, block)

    def _read_of(self, item: ReadItem, planner: LoadPlanner) -> Read | None:
        name = item.dest_index.fqn
        if item.type == LoadItemType.BYTE_IO:
            info = self._info(item.storage_index)
            return Read(
                info.relative_path,
                info.offset,
                info.length,
                None,
                functools.partial(self._use_object, planner, item, info),
                shared=True,
            )
        target = planner.resolve_tensor(item)
        if not target.numel():
            return None
        info = self._info(item.storage_index)
        stored = self._metadata.state_dict_metadata[item.storage_index.fqn]  # type: ignore[union-attr]
        dtype, sizes = stored.properties.dtype, _chunk_of(stored, item).sizes
        offsets, lengths = item.storage_offsets, item.lengths
        replicated = lengths == stored.size or _is_replicated(planner, name)
        if not (self._source.framed and is_framed(info.offset)):
            serialised = functools.partial(self._use_serialised, planner, item, target, info)
            return Read(info.relative_path, info.offset, info.length, None, serialised, replicated)
        if _frame_length(dtype, sizes) != info.length:
            raise self._contradiction(f"{name} has a wrong length", name)
        start, length = info.offset + HEAD_BYTES, math.prod(lengths) * dtype.itemsize
        rows = lengths
        if sizes:  # the rows of the first dimension lie one after the other
            row = math.prod(sizes[1:]) * dtype.itemsize
            start += offsets[0] * row
            length = lengths[0] * row
            rows = torch.Size((lengths[0], *sizes[1:]))
        memory = _memory_of(target, dtype) if rows == lengths else None
        if memory is not None:
            commit = _commit(planner, item, target)
            return Read(info.relative_path, start, length, memory, commit, replicated)

        def use(content: bytearray) -> None:
            tensor = torch.frombuffer(content, dtype=dtype).view(rows)
            part = (0, *offsets[1:]) if sizes else ()
            self._use(planner, item, target, tensor, part)

        # Of rows that are read for a part of them, others want the other parts.
        return Read(info.relative_path, start, length, None, use, replicated or rows != lengths)

    def _use_object(
        self, planner: LoadPlanner, item: ReadItem, info: Any, content: bytearray
    ) -> None:
        if not isinstance(planner, Planner):  # others read it without being particular
            load_object(content, item.dest_index.fqn, f"{self._source.path}/{info.relative_path}")
        planner.load_bytes(item, io.BytesIO(content))

    def _use_serialised(
        self,
        planner: LoadPlanner,
        item: ReadItem,
        target: torch.Tensor,
        info: Any,
        content: bytearray,
    ) -> None:
        """Take a tensor that ``torch.save`` has written."""
        path = f"{self._source.path}/{info.relative_path}"
        tensor = load_object(content, item.dest_index.fqn, path)
        if not isinstance(tensor, torch.Tensor):
            raise DamagedCheckpointError(
                f"{path}: {item.dest_index.fqn} is {type(tensor).__name__} and no tensor", path
            )
        self._use(planner, item, target, tensor, tuple(item.storage_offsets))

    def _use(
        self,
        planner: LoadPlanner,
        item: ReadItem,
        target: torch.Tensor,
        tensor: torch.Tensor,
        offsets: Sequence[int],
    ) -> None:
        """Fill a target with a part of a tensor that was read."""
        if isinstance(planner, Planner) and (is_packed(tensor) or is_packed(target)):
            planner.put(item, target, tensor)
            return
        lengths = tuple(item.lengths)
        ends = tuple(offset + length for offset, length in zip(offsets, lengths, strict=True))
        if len(ends) != tensor.ndim or any(map(operator.gt, ends, tensor.shape)):
            name, shape = item.dest_index.fqn, tuple(tensor.shape)
            raise self._contradiction(f"{name} has the shape {shape} in its file", name)
        for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
            if length != tensor.shape[dimension]:
                tensor = tensor.narrow(dimension, offset, length)
        target.copy_(tensor)
        if (commit := _commit(planner, item, target)) is not None:
            commit(bytearray())

    def _contradiction(self, what: str, *names: str) -> DamagedCheckpointError:
        path = f"{self._source.path}/{metadata_file.NAME}"
        return DamagedCheckpointError(f"{path}: {what}", path, names)

    def _info(self, index: MetadataIndex) -> Any:
        info = self._metadata.storage_data.get(index)  # type: ignore[union-attr]
        if info is None:
            raise self._contradiction(f"does not say where {index.fqn} is", index.fqn)
        if getattr(info, "transform_descriptors", None):
            raise CheckpointError(
                f"{self._source.path}: {index.fqn} was written through the extensions "
                f"{', '.join(info.transform_descriptors)}, which are not supported: load it with "
                "torch.distributed.checkpoint"
            )
        return info


class Planner(DefaultLoadPlanner):  # type: ignore[misc]  # torch: no types
    """torch's plan of a flat state, of which nothing is missing; objects cannot run code.

    A value of the state may be None: an object, or a tensor that is made here, whole.
    """

    def __init__(
        self, source: Source, place: Callable[[str, Any], None], *, nested: bool = False
    ) -> None:
        """Nothing is read or changed yet.

        Args:
            source: of the files.
            place: called with name and value of each object, and of each tensor that is made here.
            nested: there are tensors that may have shards of shards.
        """
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=nested)
        self._source = source
        self._place = place
        self._loaded = LoadedValues()
        self._parts: dict[Any, _Here] = {}

    def create_local_plan(self) -> LoadPlan:
        """Return what has to be read.

        Raises:
            StructureError: the checkpoint does not have what the state needs.
            DamagedCheckpointError: the metadata contradict themselves.
        """
        with torch.no_grad():  # else DTensors make nodes of a graph
            return LoadPlan([item for name in self.state_dict for item in self._items(name)])

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Place an object."""
        name, info = read_item.dest_index.fqn, self.metadata.storage_data[read_item.storage_index]
        path = f"{self._source.path}/{info.relative_path}"
        self._place(name, self._loaded.load(value.getvalue(), name, path))

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return a tensor, or the part of it that is here."""
        value = self.state_dict[index.fqn]
        return value if type(value) in ORDINARY else super().lookup_tensor(index)

    def put(self, item: ReadItem, target: torch.Tensor, tensor: torch.Tensor) -> None:
        """Have a packed tensor back as it was saved: none becomes one of another class.

        Raises:
            CheckpointError: a part of one is wanted, or one where an ordinary tensor was.
        """
        name, local = item.dest_index.fqn, target
        value = self.state_dict[name]
        if isinstance(value, DTensor):
            local = value.to_local()
        if target.shape != local.shape or tensor.shape != target.shape:
            raise CheckpointError(
                f"{self._source.path}: {name} was saved as {type(tensor).__name__} and is "
                f"{type(target).__name__} here, of which no part can be taken: load it whole, or "
                "distributed as it was saved"
            )
        if refill(target, tensor):
            return
        tensor = tensor.to(target.device)
        if isinstance(value, DTensor):
            mesh, placements = value.device_mesh, value.placements
            shape, stride = value.shape, value.stride()
            tensor = DTensor.from_local(
                tensor, mesh, placements, run_check=False, shape=shape, stride=stride
            )
        self._place(name, tensor)

    def _items(self, name: str) -> list[ReadItem]:
        stored, value = self.metadata.state_dict_metadata[name], self.state_dict[name]
        if not isinstance(stored, TensorStorageMetadata):
            return [_object(name, MetadataIndex(name))]
        if value is None:
            return self._new(name, stored)
        if (shape := whole_shape(value)) != stored.size:
            raise StructureError(
                f"{self._source.path}: {name} was saved as {tuple(stored.size)}, the state has "
                f"{tuple(shape)} there"
            )
        items: list[ReadItem]
        here = self._here(value)
        if here is None:
            items = create_default_local_load_plan({name: value}, self.metadata).items
        elif here.is_at(stored.chunks):
            return [_whole(name, here.parts[0], here.at)]
        else:
            items = create_read_items_for_chunk_list(name, stored, here.parts)
            if len(items) == 1:
                here.at = items[0].storage_index.index or 0
        self._check_covered(name, value, items)
        return items

    def _new(self, name: str, stored: TensorStorageMetadata) -> list[ReadItem]:
        """A tensor, whole, that the state does not have."""
        chunk = stored.chunks[0]
        index = MetadataIndex(name, chunk.offsets)
        info = self.metadata.storage_data.get(index)
        framed = self._source.framed and (info is None or is_framed(info.offset))
        if chunk.sizes == stored.size and not framed:
            return [_object(name, index)]
        tensor = torch.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
        self.state_dict[name] = tensor
        self._place(name, tensor)
        return self._items(name)

    def _here(self, value: Any) -> _Here | None:
        """Return the parts of a tensor that are here; None = it says itself which."""
        if isinstance(value, DTensor):
            if hasattr(value.to_local(), "__create_chunk_list__"):
                return None
            key = (id(value.device_mesh), value.placements, value.shape)
            if key not in self._parts:
                there = value.device_mesh.get_coordinate() is not None
                self._parts[key] = _Here(value.__create_chunk_list__() if there else [])
            return self._parts[key]
        if says_parts(value) or (type(value) not in ORDINARY and _is_in_parts(value)):
            return None
        return _Here([ChunkStorageMetadata(torch.Size([0] * value.ndim), value.shape)])

    def _check_covered(self, name: str, value: Any, items: Sequence[ReadItem]) -> None:
        """Raise an error if the checkpoint does not have all of this rank's part of a tensor."""
        wanted, there = _size_here(value), sum(math.prod(item.lengths) for item in items)
        if there > wanted:  # parts of other programs' checkpoints may overlap
            there = _covered(items)
        if there != wanted:
            path = self._source.path
            raise DamagedCheckpointError(
                f"{path}/.metadata: {name} is not whole: the checkpoint has {there} of {wanted} "
                "values of it that this rank needs. Perhaps not all ranks have saved it",
                path,
                [name],
            )


def may_be_beside(*, several: bool) -> bool:
    """Return whether other ranks may be on this machine: of several, if no launcher denies it."""
    return several and os.environ.get("LOCAL_WORLD_SIZE") != "1"


def names_in(metadata: Metadata, file: str, start: int, end: int) -> list[str]:
    """Return the tensors and objects that have bytes in a part of a file, in the file's order."""
    found = [
        (info.offset, index.fqn)
        for index, info in metadata.storage_data.items()
        if info.relative_path == file and info.offset < end and info.offset + info.length > start
    ]
    return list(dict.fromkeys(name for _, name in sorted(found)))


def listed(names: list[str]) -> str:
    """Return names for a message, not too many of them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _whole(name: str, part: ChunkStorageMetadata, at: int) -> ReadItem:
    """Return what torch plans where a part is here as it was saved."""
    index, first = MetadataIndex(name, part.offsets, at), torch.Size([0] * len(part.sizes))
    return ReadItem(LoadItemType.TENSOR, index, first, index, first, part.sizes)


def _object(name: str, index: MetadataIndex) -> ReadItem:
    nothing = torch.Size((0,))
    return ReadItem(LoadItemType.BYTE_IO, MetadataIndex(name), nothing, index, nothing, nothing)


def _shared(reads: Iterable[Read]) -> frozenset[str]:
    """Return the files of which most of what is read is read by other ranks too."""
    more: dict[str, int] = {}
    for read in reads:
        more[read.file] = more.get(read.file, 0) + (read.length if read.shared else -read.length)
    return frozenset(file for file, count in more.items() if count > 0)


def _own_bytes(read: Read) -> int:
    """Memory for what does not go straight to its place, such as tensors of devices."""
    return read.length if read.memory is None else 0


def _is_replicated(planner: LoadPlanner, name: str) -> bool:
    """Return whether several ranks have the same part of a tensor."""
    value = getattr(planner, "state_dict", {}).get(name)
    if not isinstance(value, DTensor):
        return False
    sizes = value.device_mesh.shape
    return any(
        size > 1 and not placement.is_shard()
        for size, placement in zip(sizes, value.placements, strict=True)
    )


def _commit(
    planner: LoadPlanner, item: ReadItem, target: torch.Tensor
) -> Callable[[bytearray], None] | None:
    """Return how a planner is told that a tensor is filled, if it wants to know."""
    if type(planner).commit_tensor is DefaultLoadPlanner.commit_tensor:
        return None
    return lambda _: planner.commit_tensor(item, target)


def _is_in_parts(value: torch.Tensor) -> bool:
    return hasattr(value, "__create_chunk_list__") or hasattr(value, "local_shards")


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
    at, offset = item.storage_index.index, item.storage_index.offset
    if at is not None and at < len(stored.chunks) and stored.chunks[at].offsets == offset:
        return stored.chunks[at]
    for chunk in stored.chunks:
        if chunk.offsets == offset:
            return chunk
    raise LookupError(f"{item.storage_index.fqn} has no part at {offset}")


@functools.lru_cache(maxsize=4096)
def _frame_length(dtype: torch.dtype, sizes: tuple[int, ...]) -> int:
    name = str(dtype).removeprefix("torch.")
    return frame(name, sizes).length if name in DTYPES else -1


def _memory_of(target: torch.Tensor, dtype: torch.dtype) -> memoryview | None:
    """The memory of a tensor that can be filled with bytes as they are."""
    if type(target) not in ORDINARY or not target.is_cpu or target.dtype != dtype:
        return None
    if not target.is_contiguous() or target.is_conj() or target.is_neg():
        return None
    return memory_of(target)
