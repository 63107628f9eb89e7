"""Numbers and short texts, of which a state may have thousands that are the same.

An optimizer's state that was flattened has the learning rate of each parameter. ``torch.save`` and
``torch.load`` take 0.1 ms for each; here each different value is written, and read, once.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType

from undaunted.checkpointing.dcp.objects import load_object
from undaunted.checkpointing.dcp.refusals import Refusals

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.planner import SavePlanner, WriteItem

_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
# What a step's number and the like leave behind must not pile up.
_REMEMBERED = 10_000
_SHORT = 4096


def is_plain(value: Any) -> bool:
    """Whether a value cannot change and is told by its ``repr``."""
    kind = type(value)
    return kind in _PLAIN or (kind is tuple and all(type(one) in _PLAIN for one in value))


class Written:
    """What plain values become in a file."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._refusals = Refusals()

    def resolve(self, planner: SavePlanner, item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return what the planner gives for an item; says which objects are refused later."""
        if item.type != WriteItemType.BYTE_IO or not _saves_by_default(planner):
            return planner.resolve_data(item)
        value = planner.lookup_object(item.index)
        if not is_plain(value):
            serialised: Any = planner.resolve_data(item)
            self._refusals.look(serialised.getbuffer(), item.index.fqn)
            return serialised
        name = repr(value)
        content = self._known.get(name)
        if content is None:
            made: Any = planner.resolve_data(item)
            content = made.getvalue()
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if len(content) <= _SHORT:
                self._known[name] = content
        return io.BytesIO(content)


def _saves_by_default(planner: SavePlanner) -> bool:
    return isinstance(planner, DefaultSavePlanner) and all(
        getattr(type(planner), name) is getattr(DefaultSavePlanner, name)
        for name in ("resolve_data", "transform_object")
    )


class Loaded:
    """What plain values in a file are."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def load(self, content: bytearray, name: str, path: str) -> Any:
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
