"""Numbers and short texts, of which a state may have thousands that are the same.

An optimizer's state that was flattened has the learning rate of each parameter. ``torch.save`` and
``torch.load`` take 0.1 ms for each; here each different value is written, and read, once.
"""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.tensor import DTensor

from undaunted.checkpointing.dcp import objects
from undaunted.checkpointing.dcp.objects import load_object
from undaunted.checkpointing.dcp.packed import ORDINARY
from undaunted.checkpointing.dcp.refusals import Refusals
from undaunted.checkpointing.errors import StateError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
# What a step's number and the like leave behind must not pile up.
_REMEMBERED = 10_000
_SHORT = 4096
_LONG_BITS = 2000


def is_plain(value: Any) -> bool:
    """Whether a value cannot change and is told by its ``repr``."""
    kind = type(value)
    if kind is int:  # longer ones torch writes and does not read
        return int(value).bit_length() < _LONG_BITS
    if kind is tuple:
        return all(type(one) in _PLAIN and is_plain(one) for one in value)
    return kind in _PLAIN


def _is_simple(value: Any) -> bool:
    """Whether a value is made of plain ones, so that there is no doubt that it can be loaded."""
    kind = type(value)
    if kind in (list, tuple, set):
        return all(map(_is_simple, value))
    return is_plain(value)


class Written:
    """What plain values become in a file."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._refusals = Refusals()

    def check(self, planner: SavePlanner, plan: SavePlan) -> None:
        """Raise a StateError for an object in a plan that could not be loaded."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO and _saves_by_default(planner):
                value = planner.lookup_object(item.index)
                if not _is_simple(value):
                    self._serialise(value, item, anyway=True)

    def resolve(self, planner: SavePlanner, item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return what the planner gives for an item.

        Raises:
            StateError: it could not be loaded.
        """
        if not _saves_by_default(planner):
            return planner.resolve_data(item)
        if item.type != WriteItemType.BYTE_IO:
            return _tensor_here(planner, item)
        value = planner.lookup_object(item.index)
        if not is_plain(value):
            return self._serialise(value, item)
        name = repr(value)
        content = self._known.get(name)
        if content is None:
            content = objects.dump(value).getvalue()
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if len(content) <= _SHORT:
                self._known[name] = content
        return io.BytesIO(content)

    def _serialise(self, value: Any, item: WriteItem, *, anyway: bool = False) -> io.BytesIO:
        try:
            serialised = objects.dump(value)
        except Exception as error:
            raise StateError(
                f"{item.index.fqn} cannot be saved: {type(error).__name__}: {error}"
            ) from error
        self._refusals.look(memoryview(serialised.getvalue()), item.index.fqn, anyway=anyway)
        return serialised


def _tensor_here(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    """Return what ``resolve_data`` does; what is there as it is saved needs no search."""
    value = planner.state_dict.get(item.index.fqn)
    if type(value) in ORDINARY and item.type == WriteItemType.TENSOR:
        return value
    if type(value) is DTensor:
        local = value.to_local()
        if type(local) is torch.Tensor and not hasattr(local, "__get_tensor_shard__"):
            return local  # else it says itself which parts it has
    return planner.resolve_data(item)


def _saves_by_default(planner: SavePlanner) -> TypeGuard[DefaultSavePlanner]:
    return _is_default(type(planner))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=16)
def _is_default(kind: type) -> bool:
    return issubclass(kind, DefaultSavePlanner) and all(
        getattr(kind, name) is getattr(DefaultSavePlanner, name)
        for name in ("resolve_data", "lookup_object", "transform_object")
    )


class Loaded:
    """What plain values in a file are."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def load(self, content: bytes | bytearray, name: str, path: str) -> Any:
        """Return what ``load_object`` does."""
        if len(content) > _SHORT:
            return load_object(content, name, path)
        key = bytes(content)
        if key in self._known:
            return self._known[key]
        value = load_object(content, name, path)
        if is_plain(value) and len(self._known) < _REMEMBERED:
            self._known[key] = value
        return value
