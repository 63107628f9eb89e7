"""Plans as MessagePack, for the way between ranks, and the fingerprint of what they are made of."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.tensor import DTensor

from undaunted.checkpointing.dcp.packed import is_marked, is_packed
from undaunted.checkpointing.dcp.torch_private import says_parts
from undaunted.checkpointing.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_FORMATS = (torch.contiguous_format, torch.channels_last, torch.preserve_format)


class _Tensor(msgspec.Struct, array_like=True, frozen=True):
    size: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str
    layout: str
    requires_grad: bool
    memory_format: int
    pin_memory: bool
    strides: tuple[int, ...] | None = None  # new versions of torch have them
    packed: bool = False


class _Item(msgspec.Struct, array_like=True, frozen=True):
    type: str
    fqn: str
    offset: tuple[int, ...] | None
    index: int | None
    tensor: _Tensor | None


class _EncodedPlan(msgspec.Struct, array_like=True, frozen=True):
    items: list[_Item]
    paths: dict[str, tuple[str | int, ...]] | None  # what the default planner puts beside them


class _PlanPart(msgspec.Struct, array_like=True, frozen=True):
    """What is left of a local plan: positions in it, with their new hints, or all of it anew."""

    kept: list[tuple[int, int | None]]
    anew: _EncodedPlan | None


def encode_plan(plan: SavePlan) -> bytes:
    """Return a plan as bytes.

    Raises:
        CheckpointError: a planner has put something into it that is not plain data.
    """
    return msgspec.msgpack.encode(_wire(plan))


def decode_plan(content: bytes) -> SavePlan:
    """Return what was encoded."""
    return _plan(msgspec.msgpack.decode(content, type=_EncodedPlan))


def encode_part(local: SavePlan, final: SavePlan) -> bytes:
    """Return what became of a local plan: mostly fewer items of it, so only these are named.

    Raises:
        CheckpointError: as in :func:`encode_plan`.
    """
    position = {item.index: at for at, item in enumerate(local.items)}
    kept: list[tuple[int, int | None]] = []
    for item in final.items:
        at = position.get(item.index, -1)
        if at < 0 or not _same(local.items[at], item):
            return msgspec.msgpack.encode(_PlanPart([], _wire(final)))
        kept.append((at, item.index.index))
    if final.planner_data is not local.planner_data or final.storage_data is not None:
        return msgspec.msgpack.encode(_PlanPart([], _wire(final)))
    return msgspec.msgpack.encode(_PlanPart(kept, None))


def decode_part(local: SavePlan, content: bytes) -> SavePlan:
    """Return the final plan, given the local one."""
    part = msgspec.msgpack.decode(content, type=_PlanPart)
    if part.anew is not None:
        return _plan(part.anew)
    items = [_with_hint(local.items[at], hint) for at, hint in part.kept]
    return SavePlan(items, planner_data=local.planner_data)


def _same(one: WriteItem, other: WriteItem) -> bool:
    data = one.tensor_data
    return one.type == other.type and (data is other.tensor_data or data == other.tensor_data)


def _with_hint(item: WriteItem, hint: int | None) -> WriteItem:
    index = MetadataIndex(item.index.fqn, item.index.offset, hint)
    return WriteItem(index=index, type=item.type, tensor_data=item.tensor_data)


def _wire(plan: SavePlan) -> _EncodedPlan:
    if not plan.usable:
        raise CheckpointError(
            "the planner reuses plans by itself: make it without enable_plan_caching, "
            "undaunted reuses plans already"
        )
    if plan.storage_data is not None:
        raise CheckpointError(
            f"the planner has put {type(plan.storage_data).__name__} into the plan's storage_data, "
            "which is the place of the storage"
        )
    return _EncodedPlan([_wire_item(item) for item in plan.items], _paths(plan.planner_data))


def _paths(data: Any) -> dict[str, tuple[str | int, ...]] | None:
    try:
        return msgspec.convert(data, dict[str, tuple[str | int, ...]] | None, strict=True)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            "the planner has put planner_data into its plan that cannot be sent to another rank "
            f"({error}): only a dict of str to tuples of str and int can, as DefaultSavePlanner "
            "makes it"
        ) from error


def _wire_item(item: WriteItem) -> _Item:
    index = item.index
    offset = None if index.offset is None else tuple(index.offset)
    return _Item(item.type.name, index.fqn, offset, index.index, _wire_tensor(item.tensor_data))


def _wire_tensor(data: TensorWriteData | None) -> _Tensor | None:
    if data is None:
        return None
    properties = data.properties
    return _Tensor(
        size=tuple(data.size),
        offsets=tuple(data.chunk.offsets),
        sizes=tuple(data.chunk.sizes),
        dtype=str(properties.dtype).removeprefix("torch."),
        layout=str(properties.layout).removeprefix("torch."),
        requires_grad=properties.requires_grad,
        memory_format=_FORMATS.index(properties.memory_format),
        pin_memory=properties.pin_memory,
        strides=getattr(properties, "strides", None),
        packed=is_marked(properties),
    )


def _plan(wire: _EncodedPlan) -> SavePlan:
    return SavePlan([_item(item) for item in wire.items], planner_data=wire.paths)


def _item(wire: _Item) -> WriteItem:
    data = wire.tensor
    index = MetadataIndex(wire.fqn, wire.offset, wire.index)
    kind = WriteItemType[wire.type]
    return WriteItem(index=index, type=kind, tensor_data=data and _tensor(data))


def _tensor(wire: _Tensor) -> TensorWriteData:
    properties = TensorProperties(
        dtype=_named(wire.dtype, torch.dtype),
        layout=_named(wire.layout, torch.layout),
        requires_grad=wire.requires_grad,
        memory_format=_FORMATS[wire.memory_format],
        pin_memory=wire.pin_memory,
    )
    if wire.strides is not None:
        properties.strides = wire.strides
    if wire.packed:
        properties.packed = True
    chunk = ChunkStorageMetadata(_size(wire.offsets), _size(wire.sizes))
    return TensorWriteData(chunk=chunk, properties=properties, size=_size(wire.size))


def _size(numbers: Sequence[int]) -> Any:
    return torch.Size(numbers)


def _named(name: str, kind: type) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, kind):
        raise CheckpointError(f"another rank has a tensor of torch.{name}, which is unknown here")
    return value


BYTES = 16


def digest(content: bytes) -> bytes:
    """Return the fingerprint of bytes."""
    return hashlib.blake2b(content, digest_size=BYTES).digest()


def fingerprint(state_dict: Mapping[str, Any]) -> bytes | None:
    """Return a fingerprint of names, shapes, dtypes and shards; values have no part in it.

    Args:
        state_dict: flat, as a planner has it.

    Returns:
        16 bytes; None when there is something in it of which only a plan can be made.
    """
    shardings: dict[tuple[int, Any], int] = {}
    described: list[Any] = []
    tensors: list[Any] = []
    for fqn, value in state_dict.items():
        if isinstance(value, DTensor):
            key = (id(value.device_mesh), value.placements)
            sharding = shardings.get(key)
            if sharding is None:
                sharding = shardings[key] = len(shardings)
                described.append(_sharding(value))
            local = value.to_local()
            if hasattr(local, "__create_write_items__"):  # it says itself which parts it has
                return None
            shape = (tuple(value.shape), tuple(local.shape))
            kind = (*_kind(value), sharding, *_class(local))
            tensors.append((fqn, shape, *kind))
        elif isinstance(value, torch.Tensor):
            if hasattr(value, "__create_write_items__") or value.layout != torch.strided:
                return None
            kind = (*_kind(value), *_class(value), *_parts(value))
            tensors.append((fqn, tuple(value.shape), *kind))
        elif _is_sharded(value):
            return None
        else:
            tensors.append(fqn)
    return digest(msgspec.msgpack.encode((tensors, described)))


def _kind(tensor: torch.Tensor) -> tuple[str, bool]:
    return _DTYPES[tensor.dtype], tensor.requires_grad


def _class(tensor: torch.Tensor) -> tuple[str, ...]:
    """The items of a packed tensor depend on its class."""
    return (type(tensor).__qualname__,) if is_packed(tensor) else ()


def _parts(tensor: Any) -> tuple[Any, ...]:
    """Where the parts lie of a tensor that says it itself."""
    if not says_parts(tensor):
        return ()
    return tensor.global_shape, tensor.global_offsets, tensor.local_offsets, tensor.local_sizes


class _Names(dict[torch.dtype, str]):
    """Names of dtypes, which are slow to make."""

    def __missing__(self, dtype: torch.dtype) -> str:
        name = self[dtype] = str(dtype)
        return name


_DTYPES = _Names()


def _sharding(tensor: Any) -> tuple[str, str, list[int] | None]:
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    return (
        str(tensor.placements),
        str(mesh.mesh.tolist()),
        None if coordinate is None else list(coordinate),
    )


def _is_sharded(value: Any) -> bool:
    """Return whether a planner would make more of it than an object."""
    return hasattr(value, "__create_write_items__") or hasattr(value, "local_shards")
