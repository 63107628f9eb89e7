"""Copies of states of training in host memory."""

from __future__ import annotations

import copy
import sys
from typing import Any


def host_copy(value: Any, deep: bool = False) -> Any:
    """Return a copy whose content is fixed: tensors of all devices are in new memory of the CPU.

    Dicts, lists, tuples and sets are built anew. What is the same tensor in several places, also as
    different views of the same elements, is the same copy.

    Args:
        value: any nesting; left alone.
        deep: whether other objects are copied too (`copy.deepcopy`), or handed on.
    """
    memo: dict[Any, Any] = {}
    fixed = _fixed(value, memo, deep)
    _synchronize(memo)
    return fixed


def _fixed(value: Any, memo: dict[Any, Any], deep: bool) -> Any:
    if isinstance(value, dict):
        return _like(value, [(k, _fixed(v, memo, deep)) for k, v in value.items()], deep)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_fixed(v, memo, deep) for v in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_fixed(v, memo, deep) for v in value))
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _fixed_tensor(value, memo)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return copy.deepcopy(value)
    if isinstance(value, bytearray):
        return bytearray(value)
    return copy.deepcopy(value) if deep else value


def _like(value: dict[Any, Any], items: list[tuple[Any, Any]], deep: bool) -> dict[Any, Any]:
    if type(value) is dict:
        return dict(items)
    other = copy.copy(value)  # keeps what the class adds: the factory of a defaultdict, _metadata
    other.clear()
    for key, item in items:
        other[key] = item
    if deep and hasattr(other, "__dict__"):
        other.__dict__.update(copy.deepcopy(value.__dict__))
    return other


def _fixed_tensor(tensor: Any, memo: dict[Any, Any]) -> Any:
    key = _elements(tensor)
    if key not in memo:
        from undaunted.checkpointing.dcp import packed  # needs torch, which is there

        if tensor.device.type != "cpu":
            memo.setdefault("devices", set()).add(tensor.device)
        detached = tensor.detach()
        of_parts = packed.is_packed(tensor)
        fixed = packed.copied(detached, _on_cpu) if of_parts else _on_cpu(detached)
        # The tensor is kept: its storage may not be given to another one before the end.
        memo[key] = (tensor, fixed.requires_grad_(tensor.requires_grad and tensor.is_leaf))
    return memo[key][1]


def _on_cpu(tensor: Any) -> Any:
    if tensor.device.type == "cpu":
        return tensor.clone()
    return tensor.to("cpu", non_blocking=True)


def _elements(tensor: Any) -> Any:
    """What tells tensors of the same elements; tensors without plain memory are all different."""
    if tensor.layout is not sys.modules["torch"].strided or tensor.numel() == 0:
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a subclass without a storage of its own
        address = 0
    if address == 0:
        return id(tensor)
    place = (type(tensor), tensor.device, address, tensor.dtype, tensor.requires_grad)
    return (*place, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _synchronize(memo: dict[Any, Any]) -> None:
    torch: Any = sys.modules.get("torch")
    for device in memo.get("devices", ()):
        torch.accelerator.synchronize(device)
