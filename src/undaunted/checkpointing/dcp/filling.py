"""The places in a state for the parts of a checkpoint.

What an object is given is built from the names in the checkpoint, whatever the object has now, and
it decides itself. Plain containers are filled with what was saved in them; tensors are filled in
place.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from undaunted.checkpointing.dcp import containers, states
from undaunted.checkpointing.dcp.containers import PARAMETER, TUPLE, Node
from undaunted.checkpointing.dcp.reader import listed
from undaunted.checkpointing.dcp.states import is_stateful
from undaunted.checkpointing.dcp.torch_private import (
    empty_like,
    flattened,
    says_parts,
    whole_shape,
)
from undaunted.checkpointing.errors import CheckpointError, SaveError, StructureError
from undaunted.checkpointing.per_rank import PerRank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.checkpoint.metadata import Metadata

    from undaunted.checkpointing.dcp.containers import Path

_log = logging.getLogger(__name__)

# Words that wrappers of modules put into names.
_WRAPPERS = {"_orig_mod": "torch.compile", "module": "DistributedDataParallel"}


class _WantedNames(msgspec.Struct, array_like=True, frozen=True):
    """Of one rank: the parts it fills, and which names of these it does not have."""

    parts: list[str]
    missing: list[str]


class _Owner(NamedTuple):
    """An object that is given its state.

    Attributes:
        value: the object.
        path: of its place.
        now: the state it has.
    """

    value: Any
    path: Path
    now: Any


class Filling:
    """Fills one state on one rank.

    Attributes:
        wanted: what to read by name, once it is settled: tensors to fill, and None for what is made
            when it is read.
        nested: whether there are tensors that may have shards of shards.
    """

    def __init__(self, given: MutableMapping[Any, Any], metadata: Metadata, path: str) -> None:
        """Compare a state with a checkpoint; nothing is changed yet.

        Args:
            given: the state as the user gave it.
            metadata: of the checkpoint.
            path: of the checkpoint, for messages.

        Raises:
            StructureError: the state cannot be filled, whatever was saved.
        """
        try:
            plain = states.plain(given)
            with states.collisions_named():
                self._now, paths = flattened(plain.content)
        except SaveError as error:
            raise StructureError(str(error)) from error
        _check_memory(self._now)
        self.wanted: dict[str, Any] = {}
        self._given = given
        self._path = path
        self._owners = {
            path: _Owner(value, path, now) for path, (value, now) in plain.owners.items()
        }
        self._stored = metadata.state_dict_metadata
        self._saved = containers.tree(metadata)
        self._exact = bool(self._saved.kind)
        for name in paths.keys() & self._stored.keys() - (metadata.planner_data or {}).keys():
            self._saved.at(paths[name]).name = name
        self.nested = plain.nested
        self._full = {paths[n][0] for n, v in self._now.items() if isinstance(v, torch.Tensor)}
        self._lacking = {part: list(self._lacks_below(part)) for part in map(str, given)}
        self._theirs: set[str] = set()
        self._places: dict[str, tuple[Any, Any]] = {}
        self._missing: list[str] = []
        self._memory = _Memory(self._owners.values())
        self._parameters: dict[Path, list[torch.Tensor]] = {}
        self._as_text: dict[str, None] = {}
        self._finish: list[Callable[[], None]] = []
        self._give: list[Callable[[], object]] = []

    def told(self) -> bytes:
        """Return what the other ranks have to know."""
        missing = [name for names in self._lacking.values() for name in names]
        return msgspec.msgpack.encode(_WantedNames(list(self._lacking), missing))

    def _lacks_below(self, part: str) -> Iterator[str]:
        """Names below a part that the state does not have, but for those that it takes anyway."""
        places: list[tuple[Path, Node]] = [((part,), self._saved.parts.get(part, Node()))]
        for path, node in places:
            owner = self._owners.get(path)
            if owner is not None and isinstance(owner.value, (torch.optim.Optimizer, PerRank)):
                continue
            if node.name is not None and node.name not in self._now:
                yield node.name
            places += (((*path, key), inner) for key, inner in node.parts.items())

    def settle(self, nobodys: bytes) -> None:
        """Decide what is read, and where it goes.

        Args:
            nobodys: what :func:`compare` has found.

        Raises:
            StructureError: the checkpoint does not have what the state needs.
        """
        free = set(msgspec.msgpack.decode(nobodys, type=list[str]))
        for part in self._full:  # a stage of a pipeline leaves to the other stages what is theirs
            self._theirs.update(name for name in self._lacking[part] if name not in free)
        filled: dict[Any, Any] = {}
        for key, value in sorted(self._given.items(), key=lambda item: str(item[0])):
            part = str(key)
            node = self._saved.parts.get(part, Node())
            self._fill(filled, key, value, node, (part,))
        self._give.append(lambda: _replace(self._given, filled))
        if self._missing:
            raise StructureError(
                f"{self._path} has no {listed(self._missing)}: the model or optimizer is not the "
                "one that was saved; leave out of the state what is not in the checkpoint"
                f"{self._hint()}"
            )

    def place(self, name: str, value: Any) -> None:
        """Put a value that was read to its place."""
        container, key = self._places[name]
        container[key] = value

    def hand_over(self) -> None:
        """Give everything to those it belongs to, when all is read.

        Raises:
            StructureError: an object refuses what was saved of it.
        """
        for finish in reversed(self._finish):  # what is inside comes first
            finish()
        for give in self._give:
            give()
        self._finish.clear()  # they refer to this object: only the collector would find it
        self._give.clear()
        if self._as_text:
            _log.warning(
                "keys of %s that look like numbers were loaded as text, as this checkpoint does "
                "not tell their type: put the keys there beforehand",
                listed(list(self._as_text)),
            )

    def _fill(self, box: Any, key: Any, mine: Any, node: Node, path: Path) -> None:
        """Put what is to be at a place of the state into a box; it is complete when all is read."""
        box[key] = mine
        if path in self._owners:
            self._fill_owner(self._owners[path], node)
        elif isinstance(mine, torch.Tensor):
            self._fill_tensor(box, key, mine, node, path)
        elif isinstance(mine, Mapping) and node.is_mapping:
            content = self._fill_mapping(mine, node, path)
            if isinstance(mine, MutableMapping):
                self._give.append(lambda: _refill(mine, content))
            else:
                box[key] = content
        elif isinstance(mine, list) and node.is_list:
            listing = self._fill_list(mine, node, path)
            self._give.append(lambda: mine.__setitem__(slice(None), listing))
        elif type(mine) is tuple and node.is_list and _is_protected(mine):
            inner = self._fill_list(mine, node, path)
            self._finish.append(lambda: box.__setitem__(key, tuple(inner)))
        elif not node.is_there or any(path == owner[: len(path)] for owner in self._owners):
            self._lacks(path, mine)
        else:
            if isinstance(mine, list):
                self._finish.append(lambda: _keep_list(box, key, mine))
            self._make(box, key, node, path, mine)

    def _lacks(self, path: Path, mine: Any) -> None:
        """Note that the checkpoint does not have what the state has at a place."""
        name = ".".join(map(str, path))
        inner = [one for one in self._now if one == name or one.startswith(f"{name}.")]
        if not inner and _is_protected(mine, stateful=False):  # in a tuple, which has one name
            inner = [name]
        self._missing += inner

    def _fill_tensor(self, box: Any, key: Any, mine: torch.Tensor, node: Node, path: Path) -> None:
        if node.name is None:
            self._lacks(path, mine)
        elif isinstance(self._stored[node.name], TensorStorageMetadata):
            if _repeats(mine):  # it cannot be filled in place
                box[key] = mine = _new_like(mine)
            self.wanted[node.name] = mine
            self._places[node.name] = box, key  # where it comes back as one of another class
        else:
            self._make(box, key, node, path, None)

    def _fill_mapping(self, mine: Mapping[Any, Any], node: Node, path: Path) -> dict[Any, Any]:
        content: dict[Any, Any] = {}
        keys = {str(key): key for key in mine}
        for part, inner in node.parts.items():
            place = (*path, part)
            if part in keys:
                key = node.key(part) if self._exact else keys[part]
                self._fill(content, key, mine[keys[part]], inner, place)
            else:
                self._make(content, self._key(part, node, path, mine, keys), inner, place, None)
        for part, key in keys.items():
            if part not in node.parts and _is_protected(mine[key]):
                self._lacks((*path, part), mine[key])
                content[key] = mine[key]  # an object without a state
        return content

    def _fill_list(self, mine: Sequence[Any], node: Node, path: Path) -> list[Any]:
        content: list[Any] = [None] * node.length
        for at in range(max(len(content), len(mine))):
            place, current = (*path, at), _item(mine, at)
            if at in node.parts and at < len(mine):
                self._fill(content, at, current, node.parts[at], place)
            elif at in node.parts:
                self._make(content, at, node.parts[at], place, None)
            elif at < len(content):  # older checkpoints do not have what is empty
                content[at] = current
            elif _is_protected(current):
                content.append(current)
            if at not in node.parts and _is_protected(current):
                self._lacks(place, current)
        return content

    def _fill_owner(self, owner: _Owner, node: Node) -> None:
        name = ".".join(map(str, owner.path))
        if isinstance(owner.value, PerRank):
            saved = owner.value.saved_part(f"{name}.", self._stored)
            if not saved:
                return
            node = replace(node, parts={part: node.parts[part] for part in saved})
        box: list[Any] = [{}]
        if not node.is_there:
            self._lacks(owner.path, owner.value)
        self._make(box, 0, node, owner.path, owner.now, owner)

        def give() -> None:
            state = box[0]
            versions = getattr(owner.now, "_metadata", None)  # of a module's parts
            if isinstance(state, OrderedDict) and versions:
                vars(state)["_metadata"] = node.versions_of(versions) if self._exact else versions
            try:
                owner.value.load_state_dict(state)
            except CheckpointError:
                raise
            except Exception as error:
                raise StructureError(
                    f"{name}: load_state_dict() of {type(owner.value).__name__} refuses what was "
                    f"saved of it in {self._path}: {type(error).__name__}: {error}"
                    + self._hint(f"{name}.")
                ) from error

        self._give.append(give)

    def _make(
        self, box: Any, key: Any, node: Node, path: Path, now: Any, owner: _Owner | None = None
    ) -> None:
        """Put what was saved at a place into a box; nothing if all of it is for other ranks.

        Args:
            box: a container.
            key: in it.
            node: what was saved.
            path: of the place.
            now: what the state has there.
            owner: whose state it is.
        """
        if node.name is not None:
            if node.name not in self._theirs:
                self.wanted[node.name] = box[key] = self._memory_for(node.name, path, owner)
                self._places[node.name] = box, key
                properties = getattr(self._stored[node.name], "properties", None)
                if node.kind == PARAMETER or (properties and properties.requires_grad):
                    learns = properties is None or properties.requires_grad
                    self._finish.append(lambda: _refine(box, key, node.kind, learns=learns))
            return
        content: Any
        if node.is_list:
            content = [None] * node.length
            if node.kind == TUPLE:
                self._finish.append(lambda: box.__setitem__(key, tuple(content)))
            for at, inner in node.parts.items():
                self._make(content, at, inner, (*path, at), _item(now, at), owner)
        else:
            mapping = now if isinstance(now, Mapping) else {}
            # A kind is noted for all but plain dictionaries, in checkpoints that note kinds.
            content = node.empty(None if self._exact and not node.kind else now)
            keys = {str(key): key for key in mapping}
            for part, inner in node.parts.items():
                its = self._key(part, node, path, mapping, keys, owner)
                current = mapping[keys[part]] if part in keys else None
                self._make(content, its, inner, (*path, part), current, owner)
            if owner is not None and not self._exact:  # these do not have what is empty
                empty = (k for k, v in mapping.items() if isinstance(v, Mapping))
                content.update({k: {} for k in empty if str(k) not in node.parts})
        if content or not node.parts:
            box[key] = content

    def _key(
        self,
        part: Any,
        node: Node,
        path: Path,
        now: Mapping[Any, Any],
        keys: Mapping[str, Any],
        owner: _Owner | None = None,
    ) -> Any:
        """Return a key of a dictionary with its type."""
        if self._exact:
            return node.key(part)
        if part in keys:
            return keys[part]
        if not part.isdecimal():
            return part
        optimizer = owner is not None and isinstance(owner.value, torch.optim.Optimizer)
        if owner is not None and optimizer and path == (*owner.path, "state"):
            return int(part)
        if now and all(type(one) is int for one in now):
            return int(part)
        self._as_text[".".join(map(str, path))] = None
        return part

    def _memory_for(self, name: str, path: Path, owner: _Owner | None) -> torch.Tensor | None:
        """Return where a tensor is read to; None for new memory, and for what is no tensor."""
        stored = self._stored[name]
        if owner is None or not isinstance(stored, TensorStorageMetadata):
            return None
        now, dtype = self._now.get(name), stored.properties.dtype
        if isinstance(now, torch.Tensor) and not is_lazy(now) and whole_shape(now) == stored.size:
            alike = now.dtype == dtype and now.layout == stored.properties.layout
            if alike and not _repeats(now) and self._memory.claim(now, owner):
                return now
            parted = isinstance(now, DTensor) or says_parts(now)
            return empty_like(now, dtype) if parted else None
        parameter = self._parameter(path, owner)
        if parameter is not None and whole_shape(parameter) == stored.size and len(stored.size):
            # the moments of an optimizer are distributed as the parameter is
            return empty_like(parameter, dtype)
        return None

    def _parameter(self, path: Path, owner: _Owner) -> torch.Tensor | None:
        """The parameter that a tensor in the state of an optimizer belongs to."""
        kind, *rest = path[len(owner.path) :] or ("",)
        if not isinstance(owner.value, torch.optim.Optimizer) or kind != "state" or not rest:
            return None
        if owner.path not in self._parameters:
            groups = owner.value.param_groups
            self._parameters[owner.path] = [one for group in groups for one in group["params"]]
        number, known = str(rest[0]), self._parameters[owner.path]
        return known[int(number)] if number.isdecimal() and int(number) < len(known) else None

    def _hint(self, place: str = "") -> str:
        """Say how to do without a wrapper, if names differ by those of wrappers only."""
        saved = {name for name in self._stored if name.startswith(place)} - self._now.keys()
        now = {name for name in self._now if name.startswith(place)} - self._stored.keys()
        for word, wrapper in _WRAPPERS.items():
            for names, others, advice in (
                (now, saved, f"give its .{word} in the place of the wrapped model"),
                (saved, now, f"wrap it as it was, or save its .{word} from now on"),
            ):
                bare = {_bare(name): name for name in others}
                for name in sorted(names):
                    other = bare.get(_bare(name))
                    if other is not None and word in name.split("."):
                        first, second = (other, name) if names is now else (name, other)
                        return (
                            f"\nThe checkpoint has {first}, the state has {second}: the model is "
                            f"wrapped by {wrapper} in one of them: {advice}"
                        )
        return ""


class _Memory:
    """Which memory is filled: none for two values, and that of a module for no other object."""

    def __init__(self, owners: Iterable[_Owner]) -> None:
        self._used = _Areas()
        self._of_modules = _Areas()
        for owner in owners:
            if isinstance(owner.value, torch.nn.Module) and isinstance(owner.now, Mapping):
                for value in owner.now.values():
                    if isinstance(value, torch.Tensor) and not is_lazy(value):
                        self._of_modules.add(_area(value))

    def claim(self, tensor: torch.Tensor, owner: _Owner) -> bool:
        """Return whether an object's own tensor may be filled for it."""
        area = _area(tensor)
        if not isinstance(owner.value, torch.nn.Module) and self._of_modules.meets(area):
            return False
        if self._used.meets(area):
            return False
        self._used.add(area)
        return True


class _Area(NamedTuple):
    """Memory of a device: addresses, the end excluded."""

    device: torch.device
    start: int
    end: int


class _Areas:
    """Areas of memory, joined where they overlap."""

    def __init__(self) -> None:
        self._starts: dict[torch.device, list[int]] = defaultdict(list)  # ascending
        self._ends: dict[torch.device, list[int]] = defaultdict(list)

    def meets(self, area: _Area | None) -> bool:
        """Return whether an area overlaps one of these."""
        if area is None:
            return False
        met = self._met(area)
        return bool(met.start < met.stop)

    def add(self, area: _Area | None) -> None:
        """Add an area, None = of a tensor without memory of its own."""
        if area is not None:
            starts, ends, met = self._starts[area.device], self._ends[area.device], self._met(area)
            starts[met] = [min([area.start, *starts[met]])]
            ends[met] = [max([area.end, *ends[met]])]

    def _met(self, area: _Area) -> slice:
        first = bisect_right(self._ends[area.device], area.start)
        return slice(first, bisect_left(self._starts[area.device], area.end, lo=first))


def _area(tensor: torch.Tensor) -> _Area | None:
    local = _local(tensor)
    try:
        if not local.numel():
            return None
        steps = zip(local.shape, local.stride(), strict=True)
        length = 1 + sum((size - 1) * step for size, step in steps)
        start = local.data_ptr()
    except (RuntimeError, NotImplementedError):  # of a class that has no memory of its own
        return None
    return _Area(local.device, start, start + length * local.element_size())


def _repeats(tensor: torch.Tensor) -> bool:
    """Return whether several values of a tensor may lie in one place, as after ``expand``."""
    local = _local(tensor)
    if type(local) not in (torch.Tensor, torch.nn.Parameter) or local.layout != torch.strided:
        return False
    if local.is_contiguous() or not local.numel():
        return False
    reached = 0  # places from the first value to the last one, of the dimensions so far
    for step, size in sorted(zip(local.stride(), local.shape, strict=True)):
        if size > 1:
            if step <= reached:
                return True
            reached += (size - 1) * step
    return False


def _new_like(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(tensor)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _refine(box: Any, key: Any, kind: str, *, learns: bool) -> None:
    """Make a tensor a parameter, or have it require a gradient, as it was saved."""
    value = box[key]
    if isinstance(value, torch.Tensor):
        if kind == PARAMETER and not isinstance(value, torch.nn.Parameter):
            box[key] = torch.nn.Parameter(value.detach(), requires_grad=learns)
        elif value.is_leaf:
            value.requires_grad_(learns)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _check_memory(flat: Mapping[str, Any]) -> None:
    for name, value in flat.items():
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise StructureError(
                f"{name} is on the meta device, so that it has no memory to load into: call "
                "to_empty(device=...) of the module first"
            )


def _is_protected(value: Any, *, stateful: bool = True) -> bool:
    """Return whether there are tensors, or objects, which have to be in the checkpoint."""
    if isinstance(value, torch.Tensor):
        return True
    if is_stateful(value):
        return stateful
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, (Mapping, list, tuple)):
        return any(_is_protected(one, stateful=stateful) for one in inner)
    return False


def _item(value: Any, at: Any) -> Any:
    return value[at] if isinstance(value, (list, tuple)) and at < len(value) else None


def _keep_list(box: Any, key: Any, mine: list[Any]) -> None:
    """Give the content of a list to the one that the state has."""
    if type(box[key]) is list:
        mine[:] = box[key]
        box[key] = mine


def _refill(mine: MutableMapping[Any, Any], content: Mapping[Any, Any]) -> None:
    mine.clear()
    mine.update(content)


def _replace(mine: MutableMapping[Any, Any], content: Mapping[Any, Any]) -> None:
    for key, value in content.items():
        if value is not mine[key]:
            mine[key] = value


def _bare(name: str) -> str:
    """A name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def compare(told: Sequence[bytes]) -> bytes:
    """On rank 0: the names that no rank which fills their part has, from ``told`` of all ranks."""
    known = [msgspec.msgpack.decode(one, type=_WantedNames) for one in told]
    missing = [set(one.missing) for one in known]
    parts = [one.parts for one in known]
    candidates = set().union(*missing)

    def is_nobodys(name: str) -> bool:
        return all(
            name in lacks or not any(name == part or name.startswith(f"{part}.") for part in fills)
            for lacks, fills in zip(missing, parts, strict=True)
        )

    return msgspec.msgpack.encode([name for name in sorted(candidates) if is_nobodys(name)])
