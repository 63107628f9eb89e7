"""Places in nested dictionaries and lists, as the metadata of a checkpoint name them.

A path has text for each key of a dictionary, even where that is a number, and a number for each
place in a list.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

Path = tuple[str | int, ...]


def get(root: Any, path: Path) -> Any:
    """Return the value at a place, None where there is nothing."""
    for part in path:
        if isinstance(root, Mapping):
            root = root.get(_key(root, part))
        elif isinstance(root, list) and isinstance(part, int) and part < len(root):
            root = root[part]
        else:
            return None
    return root


class Places:
    """Sets values in nested containers, of which there may be many.

    Attributes:
        root: the outermost container.
        as_text: names of dictionaries that got a number as text, since that is how keys are saved.
    """

    def __init__(self, root: MutableMapping[Any, Any]) -> None:
        """Nothing is changed yet."""
        self.root = root
        self.as_text: dict[str, None] = {}
        self._keys: dict[int, tuple[Any, dict[str, Any]]] = {}

    def put(self, path: Path, value: Any) -> None:
        """Set a value; dictionaries and lists on the way to it are made where there are none."""
        container: Any = self.root
        for at, following in enumerate(path[1:]):
            kind: type = list if isinstance(following, int) else dict
            key = self._key(container, path[: at + 1])
            inner = container[key]
            if not isinstance(inner, list if kind is list else MutableMapping):
                inner = container[key] = kind()
            container = inner
        container[self._key(container, path)] = value

    def _key(self, container: Any, path: Path) -> Any:
        """The key of a place, which is there afterwards."""
        part = path[-1]
        if isinstance(container, list):
            assert isinstance(part, int)
            container.extend([None] * (part + 1 - len(container)))
            return part
        if part in container:
            return part
        _, keys = self._keys.setdefault(
            id(container), (container, {str(key): key for key in container})
        )
        if part not in keys:
            keys[str(part)] = self._new_key(container, path)
        return keys[str(part)]

    def _new_key(self, container: Any, path: Path) -> Any:
        part = str(path[-1])
        if not part.isdecimal():
            container[part] = None
            return part
        numbers = bool(container) and all(type(one) is int for one in container)
        if not numbers:
            self.as_text[".".join(map(str, path[:-1]))] = None
        key = int(part) if numbers else part
        container[key] = None
        return key


def _key(container: Mapping[Any, Any], part: str | int) -> Any:
    """A key that is a number may be text in the path."""
    if part in container:
        return part
    return next((one for one in container if str(one) == part), part)


def own_containers(value: Any) -> Any:
    """Return the same values in dictionaries and lists of our own."""
    if type(value) is dict:
        return {key: own_containers(one) for key, one in value.items()}
    if type(value) is list:
        return [own_containers(one) for one in value]
    return value
