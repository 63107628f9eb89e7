"""The state of an optimizer that has not made a step yet, so that there is something to fill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from undaunted.checkpointing.dcp import paths

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

_STATE = "state"


def state_to_fill(optimizer: torch.optim.Optimizer, key: str, metadata: Metadata) -> dict[str, Any]:
    """Return the optimizer's state dict, with exactly the state that the checkpoint has of it.

    Args:
        optimizer: its tensors are used where it has some.
        key: under which the optimizer was saved.
        metadata: of the checkpoint.
    """
    now = optimizer.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, paths.Places] = {}
    saved: dict[str, paths.Path] = metadata.planner_data or {}
    for name, path in saved.items():
        if len(path) < 4 or path[0] != key or path[1] != _STATE or not str(path[2]).isdigit():
            continue
        number = int(path[2])
        if number >= len(parameters):
            continue
        value = paths.get(now[_STATE].get(number, {}), path[3:])
        stored = metadata.state_dict_metadata[name]
        if isinstance(stored, TensorStorageMetadata) and not isinstance(value, torch.Tensor):
            value = _empty(parameters[number], stored)
        target = state.setdefault(number, paths.Places({}))
        target.put(path[3:], value)
    return {**now, _STATE: {number: places.root for number, places in state.items()}}


def _empty(parameter: torch.Tensor, stored: TensorStorageMetadata) -> torch.Tensor:
    """What has the parameter's shape is distributed as the parameter is."""
    if stored.size == parameter.shape and len(stored.size):
        return torch.empty_like(parameter.detach(), dtype=stored.properties.dtype)
    return torch.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
