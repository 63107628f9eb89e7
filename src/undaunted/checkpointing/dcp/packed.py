"""Tensors whose class packs their values: quantized weights, the states of 8-bit optimizers.

Their shape and dtype say nothing of the parts inside. They are saved as ``torch.save`` writes them,
and come back as they were.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from undaunted.checkpointing.dcp.objects import ORDINARY, load_object, refused_types
from undaunted.checkpointing.dcp.torch_private import is_on_its_way
from undaunted.checkpointing.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.checkpoint.planner import SavePlanner, WriteItem


def is_packed(value: Any) -> bool:
    """Return whether a value is such a tensor. Of a DTensor, ask for its local tensor."""
    if type(value) in ORDINARY or not isinstance(value, torch.Tensor):
        return False
    if isinstance(value, DTensor) or is_on_its_way(value):
        return False
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return True
    return bool(is_traceable_wrapper_subclass(value))


@contextmanager
def planned_as_plain(planner: DefaultSavePlanner) -> Iterator[None]:
    """Have a planner see ordinary tensors: a class need not know what planning asks of a tensor."""
    whole = planner.state_dict
    plain = {name: _plain(value) for name, value in whole.items() if is_packed(value)}
    planner.state_dict = {**whole, **plain}
    try:
        yield
    finally:
        planner.state_dict = whole


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def mark(items: Iterable[WriteItem], planner: SavePlanner) -> list[tuple[str, torch.Tensor]]:
    """Note in the items of a plan which tensors are packed; the marks are not in ``.metadata``.

    Returns:
        Names and tensors of these.
    """
    look_up = getattr(planner, "lookup_object", None)
    found = []
    for item in items:
        if item.tensor_data is None:
            continue
        with torch.no_grad():  # else DTensors make nodes of a graph
            value = look_up(item.index) if look_up is not None else planner.resolve_data(item)
        item.tensor_data.properties.packed = packed = is_packed(value)
        if packed:
            found.append((item.index.fqn, value))
    return found


def is_marked(properties: Any) -> bool:
    """Return whether a plan's properties of a tensor say that it is packed."""
    return getattr(properties, "packed", False)


def content_of(tensor: torch.Tensor) -> memoryview:
    """Return what ``torch.save`` writes of a tensor."""
    buffer = io.BytesIO()
    torch.save(tensor.detach().cpu(), buffer)
    return memoryview(buffer.getvalue())  # a view of the buffer itself could outlive it in a cycle


def check_loadable(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise a StateError for the first class of packed tensors that could not be loaded again."""
    known: set[type] = set()
    for name, tensor in tensors:
        if type(tensor) not in known:
            known.add(type(tensor))
            _check_loadable(name, tensor)


def _check_loadable(name: str, tensor: torch.Tensor) -> None:
    kind = type(tensor).__name__
    try:
        content = content_of(tensor)
        types = refused_types(content)
        loaded = None if types else load_object(bytes(content), name, "memory")
    except Exception as error:
        raise StateError(
            f"{name} is a {kind}, which cannot be saved: {type(error).__name__}: {error}"
        ) from error
    if types:
        raise StateError(
            f"{name} is a {kind}, which loading the checkpoint would refuse.\nCall "
            f"torch.serialization.add_safe_globals([...]) with {', '.join(types)} in this program "
            "and in those that load"
        )
    if type(loaded) is not type(tensor):
        raise StateError(f"{name} is a {kind}, which would come back as {type(loaded).__name__}")


def copied(tensor: torch.Tensor, copy: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return a packed tensor whose parts are copies."""
    if not is_traceable_wrapper_subclass(tensor):
        return copy(tensor)
    names, context = tensor.__tensor_flatten__()
    inner = {name: copied(getattr(tensor, name), copy) for name in names}
    made: torch.Tensor = type(tensor).__tensor_unflatten__(
        inner, context, tensor.shape, tensor.stride()
    )
    return made


def refill(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Fill a packed tensor in place with one of the same class; False if it is made otherwise."""
    if type(target) is not type(source) or target.shape != source.shape:
        return False
    if not is_traceable_wrapper_subclass(target):
        with torch.no_grad():
            target.copy_(source)
        return True
    names, context = target.__tensor_flatten__()
    if (names, context) != tuple(source.__tensor_flatten__()):
        return False
    return all(refill(getattr(target, name), getattr(source, name)) for name in names)
