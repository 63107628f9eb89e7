"""What a checkpoint has that the state to fill does not have yet.

Dictionaries that grow while training, such as a history, are empty in a fresh script. They get what
was saved, and objects with ``load_state_dict`` as well: what is below a key of the state that is
filled is never left out in silence.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from undaunted.checkpointing.dcp.reads import listed
from undaunted.checkpointing.dcp.stateful import is_stateful
from undaunted.checkpointing.errors import StructureError
from undaunted.checkpointing.per_rank import PerRank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.checkpoint.metadata import Metadata

    from undaunted.checkpointing.dcp import paths

_log = logging.getLogger(__name__)


class _Known(msgspec.Struct, array_like=True, frozen=True):
    """Of one rank: the parts it fills, and which names of these it does not have."""

    parts: list[str]
    missing: list[str]


class Additions:
    """Names in the checkpoint that this rank's state does not have."""

    def __init__(
        self, given: Mapping[str, Any], metadata: Metadata, flat: dict[str, Any], mappings: Any
    ) -> None:
        """Find them.

        Args:
            given: the state as the user gave it.
            metadata: of the checkpoint.
            flat: what of the state is to be filled, by name. Values are taken out of it where the
                checkpoint has dictionaries or lists in their place, or the reverse.
            mappings: paths of these.
        """
        self.paths: dict[str, paths.Path] = {}
        self._stored = metadata.state_dict_metadata
        self._parts = {str(key): value for key, value in given.items()}
        for name, path in (metadata.planner_data or {}).items():
            if name not in flat and name in self._stored and self._takes(path[0]):
                self.paths[name] = path
        self._full = {mappings[n][0] for n, v in flat.items() if isinstance(v, torch.Tensor)}
        self._replace(flat, mappings)

    def _takes(self, part: Any) -> bool:
        known = (torch.optim.Optimizer, PerRank, torch.Tensor)
        return part in self._parts and not isinstance(self._parts[part], known)

    def _replace(self, flat: dict[str, Any], mappings: Any) -> None:
        """Of a place that is a container here and something else there, or the reverse."""
        if not self.paths:
            return
        leaves = set(self.paths.values())
        inner = {path[:length] for path in leaves for length in range(1, len(path))}
        for name in [name for name in flat if name not in self._stored]:
            path = mappings[name]
            above = any(path[:length] in leaves for length in range(1, len(path)))
            if above or (path in inner and not isinstance(flat[name], torch.Tensor)):
                del flat[name]

    def told(self) -> bytes:
        """Return what the other ranks have to know."""
        return msgspec.msgpack.encode(_Known(list(self._parts), list(self.paths)))

    def settle(self, nobodys: bytes) -> dict[str, Any]:
        """Decide which of them are filled.

        Args:
            nobodys: what :func:`compare` has found.

        Returns:
            What to fill by name: tensors, and None for everything else.

        Raises:
            StructureError: a tensor of a model or object was saved in parts, and is not here.
        """
        free = set(msgspec.msgpack.decode(nobodys, type=list[str]))
        chosen: dict[str, Any] = {}
        in_parts = []
        for name, path in list(self.paths.items()):
            stored, part = self._stored[name], path[0]
            # A stage of a pipeline leaves to the other stages what is theirs.
            theirs = part in self._full and name not in free
            if theirs or (isinstance(stored, TensorStorageMetadata) and len(stored.chunks) != 1):
                del self.paths[name]
                if not theirs:
                    in_parts.append(name)
            elif isinstance(stored, TensorStorageMetadata):
                chosen[name] = torch.empty(stored.size, dtype=stored.properties.dtype)
            else:
                chosen[name] = None
        if in_parts:
            self._refuse(in_parts)
        return chosen

    def _refuse(self, names: list[str]) -> None:
        owned = [
            n for n in names if any(_begins(n, p) for p, v in self._parts.items() if is_stateful(v))
        ]
        if owned:
            raise StructureError(
                f"the checkpoint has {listed(owned)}, saved in parts by several ranks, and the "
                "object to load has no such tensors: it is not the one that was saved; to load a "
                "part of a model, give model.state_dict() in its place"
            )
        _log.warning(
            "%s of the checkpoint were saved in parts by several ranks and are not loaded, as the "
            "state has no such tensors: put tensors of that shape there to have them filled",
            listed(names),
        )

    def put(self, places: paths.Places, values: Mapping[str, Any]) -> None:
        """Give them to the state."""
        for name, path in self.paths.items():
            places.put(path, values[name])
        if places.as_text:
            _log.warning(
                "keys of %s that look like numbers were loaded as text, which is how a checkpoint "
                "has the keys of dictionaries: use text as keys, or put the keys there beforehand",
                listed(list(places.as_text)),
            )


def _begins(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def compare(told: Sequence[bytes]) -> bytes:
    """On rank 0: the names that no rank which fills their part has, from ``told`` of all ranks."""
    known = [msgspec.msgpack.decode(one, type=_Known) for one in told]
    missing = [set(one.missing) for one in known]
    parts = [one.parts for one in known]
    candidates = set().union(*missing)

    def is_nobodys(name: str) -> bool:
        return all(
            name in lacks or not any(_begins(name, part) for part in fills)
            for lacks, fills in zip(missing, parts, strict=True)
        )

    return msgspec.msgpack.encode([name for name in sorted(candidates) if is_nobodys(name)])
