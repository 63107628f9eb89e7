"""A fingerprint of the structure of a state: whether the plan of the save before fits this one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from undaunted.checkpointing.dcp.packed import is_packed
from undaunted.checkpointing.dcp.torch_private import says_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Whether a planner would make more of it than an object."""
    return hasattr(value, "__create_write_items__") or hasattr(value, "local_shards")
