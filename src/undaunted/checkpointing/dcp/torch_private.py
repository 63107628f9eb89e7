"""The only module that uses names which torch does not promise to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

# What torch's own reader accepts; written into `.metadata`.
METADATA_VERSION = "1.0.0"


def storage_info(name: str, offset: int, length: int) -> Any:
    """Return what ``.metadata`` says of the place of an item."""
    return _storage_info_class()(name, offset, length)


def _storage_info_class() -> Any:
    try:
        from torch.distributed.checkpoint.filesystem import _StorageInfo
    except ImportError as error:
        raise RuntimeError(
            f"torch {torch.__version__} has no torch.distributed.checkpoint.filesystem."
            "_StorageInfo any more: checkpoints cannot be written in its format; use torch 2.13 or "
            "a newer version of undaunted"
        ) from error
    return _StorageInfo


def copy_each(destinations: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors of the CPU, each to its destination; faster than a loop when they are small."""
    copy_all = getattr(torch, "_foreach_copy_", None)
    if copy_all is not None and destinations:
        copy_all(destinations, sources)
        return
    for destination, source in zip(destinations, sources, strict=True):
        destination.copy_(source)


def is_on_its_way(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the result of a collective that may still run."""
    try:
        from torch.distributed._functional_collectives import AsyncCollectiveTensor
    except ImportError:
        return False
    return isinstance(tensor, AsyncCollectiveTensor)


def says_parts(value: Any) -> bool:
    """Return whether a value is a tensor that is a part of a larger one, and says which.

    It is an ordinary tensor with attributes: a ``CheckpointableTensor`` of torch 2.14.
    """
    if not hasattr(value, "global_offsets"):
        return False
    try:
        from torch.distributed.checkpoint.protocol import _is_checkpointable_tensor
    except ImportError:
        return False
    return bool(_is_checkpointable_tensor(value))


def whole_shape(tensor: Any) -> torch.Size:
    """Return the shape of a tensor, and not that of the part which is here."""
    return torch.Size(tensor.global_shape) if says_parts(tensor) else tensor.shape


def empty_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return memory for the same part of a tensor."""
    made = torch.empty_like(tensor.detach(), dtype=dtype)
    if says_parts(tensor):
        from torch.distributed.checkpoint.protocol import _copy_checkpointable_tensor_metadata

        _copy_checkpointable_tensor_metadata(tensor, made)
    return made


def flattened(state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a nested state by name, and their paths, as torch's planners do."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    flat, paths = flatten_state_dict(state_dict)
    return flat, paths


def default_store() -> Any:
    """Return a store that all ranks reach, over a connection of its own where torch can make one.

    Raises:
        ValueError: `torch.distributed` is not initialised.
    """
    try:
        from torch.distributed.distributed_c10d import _get_default_store
    except ImportError as error:
        raise RuntimeError(
            f"torch {torch.__version__} has no torch.distributed.distributed_c10d."
            "_get_default_store any more: use torch 2.13 or a newer version of undaunted"
        ) from error
    store = _get_default_store()
    return store.clone() if hasattr(store, "clone") else store
