"""Types of containers, of their keys and of tensors, which names in a checkpoint do not tell.

Names are the texts of all keys on the way to a value, so empty dictionaries, tuples and numbers as
keys get lost. ``planner_data`` in the metadata, the paths by name, has entries for these besides.
"""

from __future__ import annotations

import ast
import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import MutableMapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from undaunted.checkpointing.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.distributed.checkpoint.metadata import Metadata

Path = tuple[str | int, ...]

# Names of values are keys joined by dots: none begins so.
_MARK = "\0"
_MIXED = "mixed"
_VERSIONS = "versions"
_FIRST = {"version": 1}
_TEXT = "str"
OTHER = "other"
TUPLE = "tuple"
PARAMETER = "parameter"  # of a tensor

_TYPES: dict[str, Callable[[], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}
_FACTORIES = {one.__name__: one for one in (bool, dict, float, int, list, set, str, tuple)}
_KEYS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: {"True": True, "False": False}.__getitem__,
    type(None): lambda _: None,
    bytes: ast.literal_eval,
    tuple: ast.literal_eval,
    torch.dtype: lambda text: getattr(torch, text.removeprefix("torch.")),
    torch.device: torch.device,
}
_BY_NAME = {kind.__name__: make for kind, make in _KEYS.items()}


class Noted:
    """Entries for containers of a state, to be put beside the paths of its values."""

    def __init__(self) -> None:
        """Note the root, by which a checkpoint that has such entries is known."""
        self.entries: dict[str, Path] = {}
        self.add((), "dict", _TEXT)

    def add(self, path: Path, kind: str, keys: str) -> None:
        """Note a container, a parameter, or of the dictionary around it one key."""
        name = _MARK.join(("", kind, keys, ".".join(map(str, path))))
        self.entries[name] = (kind, keys, *path)

    def versions(self, path: Path, state: Any) -> None:
        """Note the versions of the modules that a state is of, but for those that are 1."""
        known = getattr(state, "_metadata", None)
        known = known if isinstance(known, dict) else {}
        odd = {name: version for name, version in known.items() if version != _FIRST}
        with suppress(TypeError, ValueError):  # modules may put there what they like
            if odd:
                self.add(path, _VERSIONS, json.dumps(odd))

    def mapping(self, path: Path, value: Mapping[Any, Any]) -> None:
        """Note a dictionary, if it is one that its names do not tell of.

        Raises:
            StateError: a key cannot be told by a text and a type.
        """
        kinds = {key: _TEXT if type(key) is str else _key_type(key, path) for key in value}
        types = set(kinds.values())
        if types == {_TEXT} and type(value) is dict:
            return
        (keys,) = types if len(types) == 1 else (_MIXED if types else "",)
        self.add(path, _kind(value), keys)
        if keys == _MIXED:
            for key, name in kinds.items():
                if name != _TEXT:
                    self.add((*path, str(key)), "", name)


def _kind(value: Mapping[Any, Any]) -> str:
    if isinstance(value, defaultdict) and type(value) is defaultdict:
        factory = getattr(value.default_factory, "__name__", "None")
        known = _FACTORIES.get(factory) is value.default_factory
        return f"defaultdict {factory}" if known else OTHER
    name = type(value).__name__
    return name if _TYPES.get(name) is type(value) else OTHER


def _key_type(key: Any, path: Path) -> str:
    text = str(key)
    if isinstance(key, str) and key == text:
        return _TEXT
    for kind in type(key).__mro__:
        if (make := _KEYS.get(kind)) is not None and _is_told(key, make, text):
            return kind.__name__
    if type(key).__module__ == "numpy" and _is_told(key, int, text):
        return "int"
    place = ".".join(map(str, path)) or "the state"
    raise StateError(
        f"{place} has the key {key!r}, of type {type(key).__name__}, which cannot be saved: use "
        "text, a number, None, bytes, a tuple of these, a dtype or a device"
    )


def _is_told(key: Any, make: Callable[[str], Any], text: str) -> bool:
    try:
        made = make(text)
        return bool(made == key or (made != made and key != key))  # noqa: PLR0124 - NaN
    except (ValueError, SyntaxError, KeyError, AttributeError, RuntimeError):
        return False


@dataclass(slots=True)
class Node:
    """A place in a checkpoint.

    Attributes:
        name: of the value that was saved there, None for a container.
        parts: of a container, by key as text, or by place in a list.
        kind: of a container, or PARAMETER; empty where that is not known.
        keys: their type, of a container.
        key_type: of the key that leads here, if keys of the container around have several.
        versions: of the modules whose state it is, as JSON.
    """

    name: str | None = None
    parts: dict[str | int, Node] = field(default_factory=dict)
    kind: str = ""
    keys: str = ""
    key_type: str = ""
    versions: str = "{}"

    def at(self, path: Path) -> Node:
        """Return the place below this one; it is made where there is none."""
        node = self
        for part in path:
            following = node.parts.get(part)
            if following is None:
                following = node.parts[part] = Node()
            node = following
        return node

    @property
    def is_list(self) -> bool:
        """Return whether it is a list, or a tuple."""
        return self.kind == TUPLE or isinstance(next(iter(self.parts), None), int)

    @property
    def is_mapping(self) -> bool:
        """Return whether it is a dictionary."""
        return self.name is None and self.is_there and not self.is_list

    @property
    def length(self) -> int:
        """Of a list."""
        return max((part for part in self.parts if isinstance(part, int)), default=-1) + 1

    @property
    def is_there(self) -> bool:
        """Return whether something was saved there."""
        return self.name is not None or bool(self.parts) or bool(self.kind)

    def key(self, part: str) -> Any:
        """Return the key of a part of a dictionary, with its type where that is known."""
        try:
            return _BY_NAME.get(self.parts[part].key_type or self.keys, str)(part)
        except (ValueError, SyntaxError, KeyError):  # ranks had keys of different types
            return part

    def versions_of(self, modules: Mapping[str, Any]) -> OrderedDict[str, Any]:
        """Return the versions that modules had when they were saved."""
        odd = json.loads(self.versions)
        return OrderedDict((name, odd.get(name, dict(_FIRST))) for name in modules)

    def empty(self, current: Any) -> Any:
        """Return a dictionary as it was, without its content.

        Args:
            current: what the state to fill has there.
        """
        if self.kind.startswith("defaultdict "):
            return defaultdict(_FACTORIES.get(self.kind.split(" ")[1]))
        if self.kind in _TYPES:
            return _TYPES[self.kind]()
        if isinstance(current, MutableMapping):
            made = copy(current)
            made.clear()
            return made
        return {}


def paths(planner_data: Mapping[str, Path] | None) -> Iterator[Path]:
    """Return the paths of all values, and of the containers that are noted beside them."""
    for name, path in (planner_data or {}).items():
        yield path[2:] if name.startswith(_MARK) else path


def tree(metadata: Metadata) -> Node:
    """Return all places of a checkpoint; those of names without a path are not in it."""
    root = Node()
    for name, path in (metadata.planner_data or {}).items():
        if name in metadata.state_dict_metadata:
            root.at(path).name = name
        elif name.startswith(_MARK):
            kind, keys, *rest = path
            node = root.at(tuple(rest))
            if kind == _VERSIONS:
                node.versions = keys
            elif kind:
                node.kind, node.keys = kind, keys or node.keys
            else:
                node.key_type = keys
    return root
