"""Objects that loading would refuse: they are refused when they are saved."""

from __future__ import annotations

import re

from undaunted.checkpointing.dcp.objects import load_object, refused_types
from undaunted.checkpointing.errors import CheckpointError, StateError

# Names of classes and functions, as protocol 2 of pickle has them; other bytes may look like it.
_NAMES = re.compile(rb"c([\w.]+\n[\w.]+)\n")
# Longer ones, mostly arrays, are looked through once for each name, and not to their end.
_SHORT_BYTES = 1 << 20
_LOOKED_AT_BYTES = 16 << 20
# What a state whose names change all the time leaves behind must not pile up.
_REMEMBERED = 10_000


class Refusals:
    """Looks for types that are not read from a file without consent."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._seen: set[bytes] = set()
        self._long: set[str] = set()

    def look(self, content: memoryview, name: str, *, anyway: bool = False) -> None:
        """Look at what ``torch.save`` has made of an object.

        Args:
            content: what it has made.
            name: of the object in the state.
            anyway: look although it names no types that were not there before.

        Raises:
            StateError: it could not be loaded; names the types.
        """
        long = len(content) > _SHORT_BYTES
        if long:
            if name in self._long or len(self._long) >= _REMEMBERED:
                return
            self._long.add(name)
        new = set(_NAMES.findall(content[:_LOOKED_AT_BYTES])) - self._seen
        if not (new or anyway):
            return
        if types := refused_types(content):
            self._long.discard(name)
            raise StateError(
                f"{name} has objects of types that loading would refuse: {', '.join(types)}. Save "
                "plain data in their place, or call torch.serialization.add_safe_globals([...]) "
                "with these types before saving and before loading"
            )
        if not long:
            try:
                load_object(content, name, "the copy in memory")
            except CheckpointError as error:
                raise StateError(f"{name} cannot be loaded once it is saved: {error}") from error
        if len(self._seen) + len(new) > _REMEMBERED:
            self._seen.clear()
        self._seen |= new
