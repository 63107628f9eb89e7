"""Tensors whose class keeps their values in a way of its own.

Such are quantized weights and the states of 8-bit optimizers: their shape and dtype say nothing of
what they are made of. They are saved as ``torch.save`` writes them, and come back as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from undaunted.checkpointing.dcp.torch_private import is_on_its_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.checkpoint.planner import WriteItem

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def is_packed(value: Any) -> bool:
    """Whether a value is such a tensor. Of a DTensor, ask for its local tensor."""
    if type(value) in _ORDINARY or not isinstance(value, torch.Tensor):
        return False
    if isinstance(value, DTensor) or is_on_its_way(value):
        return False
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return True
    return bool(is_traceable_wrapper_subclass(value))


def mark(items: Iterable[WriteItem], value_of: Callable[[WriteItem], Any]) -> None:
    """Note in the items of a plan which tensors are packed; the mark is not in ``.metadata``."""
    for item in items:
        if item.tensor_data is not None and is_packed(value_of(item)):
            item.tensor_data.properties.packed = True


def is_marked(properties: Any) -> bool:
    """Whether a plan's properties of a tensor say that it is packed."""
    return getattr(properties, "packed", False)
