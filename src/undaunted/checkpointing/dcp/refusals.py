"""Objects that can be saved and would be refused when loading: said when they are saved."""

from __future__ import annotations

import logging
import re

from undaunted.checkpointing.dcp.objects import refused_types

_log = logging.getLogger(__name__)

# Names of classes and functions, as protocol 2 of pickle has them; other bytes may look like it.
_NAMES = re.compile(rb"c([\w.]+\n[\w.]+)\n")
# Longer ones, mostly arrays, are looked through once for each name, and not to their end.
_SHORT_BYTES = 1 << 20
_LOOKED_AT_BYTES = 16 << 20
# What a state whose names change all the time leaves behind must not pile up.
_REMEMBERED = 10_000


class Refusals:
    """Looks for types that are not read from a file without consent; each is told once."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._seen: set[bytes] = set()
        self._long: set[str] = set()
        self._told: set[str] = set()

    def look(self, content: memoryview, name: str) -> None:
        """Warn of types in what ``torch.save`` has made of an object.

        Args:
            content: what it has made.
            name: of the object in the state.
        """
        if len(content) > _SHORT_BYTES:
            if name in self._long or len(self._long) >= _REMEMBERED:
                return
            self._long.add(name)
        new = set(_NAMES.findall(content[:_LOOKED_AT_BYTES])) - self._seen
        if not new:
            return
        if len(self._seen) + len(new) > _REMEMBERED:
            self._seen.clear()
        self._seen |= new
        types = [one for one in refused_types(content) if one not in self._told]
        if types:
            self._told.update(types)
            _log.warning(
                "%s has objects of types that loading the checkpoint is going to refuse: %s. Save "
                "plain data in their place, or call torch.serialization.add_safe_globals([...]) "
                "with these types before loading (before saving as well, and this is not said)",
                name,
                ", ".join(types),
            )
