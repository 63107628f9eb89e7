"""Names that are saved once have to mean the same on all ranks."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.tensor import DTensor

from undaunted.base.text import name_ranks
from undaunted.checkpointing.dcp import containers, digests
from undaunted.checkpointing.dcp.states import is_stateful
from undaunted.checkpointing.errors import SaveError, StateError
from undaunted.checkpointing.per_rank import PerRank

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

_log = logging.getLogger(__name__)
_Key = TypeVar("_Key")

# How many names and ranks a message lists.
_NAMED = 5
# Buffers that torch's modules fill on each rank with what that rank has seen.
_RUNNING = ("running_mean", "running_var", "num_batches_tracked", "_extra_state")


@dataclass
class Content:
    """Of one rank: what is in the items of its plan.

    Attributes:
        digests: one for each item; empty for what is not compared, such as shards.
        buffers: names of modules' buffers and of other state they keep beside their parameters.
        own: names of all that is in a `PerRank`.
    """

    digests: list[bytes] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)


def content_of(plan: SavePlan, planner: SavePlanner, given: Mapping[str, Any]) -> Content:
    """Return what the other ranks have to know of this one's content.

    Args:
        plan: of this rank.
        planner: that has made it.
        given: the state as the user gave it.
    """
    if not isinstance(planner, DefaultSavePlanner):
        return Content()
    found = [b""] * len(plan.items)
    tensors: dict[int, torch.Tensor] = {}
    for at, item in enumerate(plan.items):
        if item.type == WriteItemType.BYTE_IO:
            found[at] = digests.of_value(planner.lookup_object(item.index))
        elif item.type == WriteItemType.TENSOR or _is_of_some_ranks(planner, item):
            tensors[at] = planner.lookup_object(item.index)
    for at, digest in zip(tensors, digests.of_tensors(list(tensors.values())), strict=True):
        found[at] = digest
    buffers = _buffers_of(given)
    names = (item.index.fqn for item in plan.items if item.type != WriteItemType.SHARD)
    running = [name for name in names if name in buffers or _is_running(name)]
    return Content(found, running, _own_of(given))


def _is_of_some_ranks(planner: DefaultSavePlanner, item: WriteItem) -> bool:
    """Return whether it is a shard on a mesh of some ranks: others may have more of that name."""
    value = planner.state_dict.get(item.index.fqn)
    return isinstance(value, DTensor) and value.device_mesh.size() < dist.get_world_size()


def _buffers_of(given: Any) -> set[str]:
    """Names of the buffers of all modules in a state."""
    modules = ((name, one) for name, one in _inside(given) if isinstance(one, torch.nn.Module))
    return {f"{name}.{buffer}" for name, module in modules for buffer, _ in module.named_buffers()}


def _own_of(given: Any) -> list[str]:
    return [name for name, one in _inside(given) if isinstance(one, PerRank)]


def _inside(given: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All objects in a state or a container, with their names."""
    for key, one in given.items() if isinstance(given, Mapping) else enumerate(given):
        if is_stateful(one):
            yield f"{prefix}{key}", one
        elif isinstance(one, (Mapping, list, tuple)):
            yield from _inside(one, f"{prefix}{key}.")


def _is_running(name: str) -> bool:
    return name.rpartition(".")[2] in _RUNNING


def check_content(
    plans: Sequence[SavePlan],
    contents: Sequence[Content],
    known: set[str],
    *,
    refuse: bool,
    certify: bool = False,
) -> None:
    """Look for names under which ranks have different content, of which one would be saved.

    Args:
        plans: of all ranks, as in :func:`check_plans`.
        contents: of all ranks.
        known: names that differ and were warned of; what is warned of now is added.
        refuse: raise an error; else, and always for buffers of modules, warn.
        certify: they were the same before: say that one of them is wrong.

    Raises:
        StateError: names what differs, and the ranks.
        SaveError: likewise, to certify.
    """
    ranks: dict[tuple[str, Any], dict[bytes, list[int]]] = {}
    for rank, (plan, content) in enumerate(zip(plans, contents, strict=True)):
        for item, digest in zip(plan.items, content.digests, strict=False):
            if digest:
                part = (item.index.fqn, item.index.offset)
                ranks.setdefault(part, {}).setdefault(digest, []).append(rank)
    differ: dict[str, dict[Any, list[int]]] = _lists_that_differ(plans, known)
    for (name, _), on in ranks.items():
        if len(on) > 1 and name not in known:
            differ.setdefault(name, on)
    buffers = {name for content in contents for name in content.buffers}
    wrong = [name for name in differ if name not in buffers]
    on_ranks = [rank for name in wrong[:1] for on in differ[name].values() for rank in on]
    if wrong and certify:
        raise SaveError(
            f"not saved, as replicas are not the same any more: {_differs(wrong[0], differ)}."
            f"{_further(wrong, differ)}\nA rank has computed or kept something wrong, or the "
            "program changes it on some ranks only",
            sorted(on_ranks),
        )
    if wrong and refuse:
        raise StateError(
            f"{_differs(wrong[0], differ)}, and a checkpoint has one copy of it for all ranks."
            f"{_further(wrong, differ)}\nWrap what each rank has for itself in PerRank(...), or "
            'give it a name for each rank. Checkpointer(..., differing="warn") saves the copy of '
            "one rank",
            sorted(on_ranks),
        )
    for names, remedy in (
        (wrong, "wrap what each rank has for itself in PerRank(...)"),
        ([name for name in differ if name in buffers], "make buffers equal before the save"),
    ):
        if names:
            known.update(names)
            _log.warning(
                "%s: the copy of one rank is saved. If that matters, %s.%s",
                _differs(names[0], differ),
                remedy,
                _further(names, differ),
            )


def _lists_that_differ(
    plans: Sequence[SavePlan], known: set[str]
) -> dict[str, dict[Any, list[int]]]:
    """Lists that have another length on some rank: the ranks by length, by name."""
    lengths: dict[str, dict[int, list[int]]] = {}
    for rank, plan in enumerate(plans):
        for name, length in _lengths(plan).items():
            lengths.setdefault(name, {}).setdefault(length, []).append(rank)
    return {n: dict(of) for n, of in lengths.items() if len(of) > 1 and n not in known}


def _lengths(plan: SavePlan) -> dict[str, int]:
    """How many entries a rank has in each list of which the entries are saved one by one."""
    lengths: dict[str, int] = {}
    for path in containers.paths(plan.planner_data):
        for at, part in enumerate(path):
            if isinstance(part, int):
                name = ".".join(map(str, path[:at]))
                lengths[name] = max(lengths.get(name, 0), part + 1)
    return lengths


def _differs(name: str, differ: Mapping[str, Mapping[Any, list[int]]]) -> str:
    if all(type(length) is int for length in differ[name]):
        lengths = sorted(differ[name].items())
        return f"{name} has " + ", ".join(
            f"{length} entr{'y' if length == 1 else 'ies'} on {_listed(on)}"
            for length, on in lengths[:_NAMED]
        )
    kinds = list(differ[name].values())
    if len(kinds) == 2:
        return f"{name} differs between {_listed(kinds[0])} and {_listed(kinds[1])}"
    return f"{name} differs between {_listed(sorted(rank for on in kinds for rank in on))}"


def _further(names: Sequence[str], differ: Mapping[str, Mapping[Any, list[int]]]) -> str:
    lines = [f"\n  {_differs(name, differ)}." for name in names[1:_NAMED]]
    more = len(names) - _NAMED
    return "".join(lines) + (f"\n  and {more} more." if more > 0 else "")


@dataclass(frozen=True)
class Groups:
    """Names of values other than tensors that one rank has in common with others.

    Attributes:
        names: by number of the group, which is the same on all its ranks.
    """

    names: dict[int, list[str]] = field(default_factory=dict)

    def digests(self, state_dict: Mapping[str, Any]) -> dict[int, bytes]:
        """Return one digest for each group."""
        return {
            group: digests.of_values(state_dict.get(name) for name in names)
            for group, names in self.names.items()
        }


# By part of a tensor: its name and offset in the whole one.
Part = tuple[str, tuple[int, ...] | None]
Digests = dict[Part, bytes]


@dataclass(frozen=True)
class Replicas:
    """Parts of tensors that one rank has in common with others.

    Attributes:
        items: of the plan, by number of the group, which is the same on all its ranks.
    """

    items: dict[int, list[WriteItem]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: SavePlan, content: Content, groups: Mapping[int, Sequence[int]]) -> Self:
        """Return those of one rank, from its part of :func:`replicated`."""
        group_of = {at: group for group, positions in groups.items() for at in positions}
        items: dict[int, list[WriteItem]] = {}
        for at, digest in enumerate(content.digests):
            item = plan.items[at]
            if digest and item.tensor_data is not None and (group := group_of.get(at, 0)) >= 0:
                items.setdefault(group, []).append(item)
        for of_group in items.values():
            of_group.sort(key=part_of)
        return cls(items)

    def digests(self, planner: SavePlanner) -> Digests:
        """Return the digest of each part as it is now."""
        items = [item for of_group in self.items.values() for item in of_group]
        if not isinstance(planner, DefaultSavePlanner):
            return {}
        tensors = [planner.lookup_object(item.index) for item in items]
        return dict(zip(map(part_of, items), digests.of_tensors(tensors), strict=True))

    def of_groups(self, content: Digests) -> dict[int, bytes]:
        """Return one digest for each group."""
        return {
            group: digests.of_digests(
                content[part_of(item)] for item in items if part_of(item) in content
            )
            for group, items in self.items.items()
        }


def part_of(item: WriteItem) -> Part:
    """Return which part of which tensor an item is."""
    offset = item.index.offset
    return item.index.fqn, None if offset is None else tuple(offset)


def digests_of(plan: SavePlan, content: Content) -> Digests:
    """Return the digests of the parts of tensors that were compared."""
    pairs = zip(plan.items, content.digests, strict=False)
    return {part_of(item): d for item, d in pairs if d and item.tensor_data is not None}


def replicated(
    plans: Sequence[SavePlan], contents: Sequence[Content], known: set[str]
) -> tuple[list[dict[int, list[int]]], int]:
    """Return for each rank which parts of tensors are not those of all ranks.

    Args:
        plans: of all ranks.
        contents: of all ranks.
        known: names that are not compared any more.

    Returns:
        Positions in the plan by number of the group, as :func:`grouped` does; and how many parts
        are in a group. Buffers of modules are in none: they may differ.
    """
    holders: dict[Part, list[int]] = {}
    for rank, (plan, content) in enumerate(zip(plans, contents, strict=True)):
        for part in digests_of(plan, content):
            holders.setdefault(part, []).append(rank)
    left_out = known.union(*(content.buffers for content in contents))
    group_of = _numbered(
        {p: [] if p[0] in left_out else on for p, on in holders.items()}, len(plans)
    )
    apart: list[dict[int, list[int]]] = [{} for _ in plans]
    for rank, plan in enumerate(plans):
        for at, item in enumerate(plan.items):
            if group := group_of.get(part_of(item), 0):
                apart[rank].setdefault(group, []).append(at)
    return apart, sum(group >= 0 for group in group_of.values())


def _numbered(holders: Mapping[_Key, Sequence[int]], count: int) -> dict[_Key, int]:
    """Return the number of the group of ranks that has each one; 0 = all, -1 = one rank or none."""
    numbers = {tuple(range(count)): 0}
    return {
        key: numbers.setdefault(tuple(on), len(numbers)) if len(on) > 1 else -1
        for key, on in holders.items()
    }


def equal(ranks: Iterable[Mapping[int, bytes]]) -> bool:
    """Return whether all ranks of each group have the same values, by `Groups.digests`."""
    first: dict[int, bytes] = {}
    return all(first.setdefault(group, d) == d for of_rank in ranks for group, d in of_rank.items())


def grouped(plans: Sequence[SavePlan], known: set[str]) -> list[dict[int, list[int]]]:
    """Return for each rank which values are not those of all ranks.

    Args:
        plans: of all ranks.
        known: names that are not compared any more.

    Returns:
        Positions in the plan by number of the group; 0, that of all ranks, is left out, and those
        that no other rank has, or that are not compared, are in group -1.
    """
    holders: dict[str, list[int]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                holders.setdefault(item.index.fqn, []).append(rank)
    compared = {name: [] if name in known else on for name, on in holders.items()}
    group_of = _numbered(compared, len(plans))
    apart: list[dict[int, list[int]]] = [{} for _ in plans]
    for rank, plan in enumerate(plans):
        for at, item in enumerate(plan.items):
            if group := group_of.get(item.index.fqn, 0):
                apart[rank].setdefault(group, []).append(at)
    return apart


def groups_of(plan: SavePlan, apart: Mapping[int, Sequence[int]]) -> Groups:
    """Return the groups of one rank, from its part of :func:`grouped`."""
    of = {at: group for group, positions in apart.items() for at in positions}
    names: dict[int, list[str]] = {}
    for at, item in enumerate(plan.items):
        if item.type == WriteItemType.BYTE_IO and (group := of.get(at, 0)) >= 0:
            names.setdefault(group, []).append(item.index.fqn)
    return Groups({group: sorted(of_group) for group, of_group in names.items()})


def check_plans(plans: Sequence[SavePlan]) -> None:
    """Look for names under which ranks have different things.

    Of a tensor that is in parts this is the whole one. See also :func:`check_content`.

    Args:
        plans: of all ranks, in their order, before they are decided on.

    Raises:
        StateError: names what differs, and the ranks.
    """
    first: dict[str, str | tuple[str, object, object]] = {}
    different: dict[str, None] = {}
    for plan in plans:
        for item in plan.items:
            kind = _kind(item)
            if first.setdefault(item.index.fqn, kind) != kind:
                different[item.index.fqn] = None
    _check_containers(plans)
    if different:
        names = list(different)
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        told = "; ".join(_told(plans, name) for name in names[:_NAMED])
        raise StateError(
            f"ranks have different things under one name: {told}{more}. A name of all ranks is "
            "saved once: give what differs from rank to rank a name for each rank",
            _ranks_of(plans, names[0]),
        )


def check_own(plans: Sequence[SavePlan], contents: Sequence[Content]) -> None:
    """Look for a `PerRank` where another rank has something else.

    Args:
        plans: of all ranks, as in :func:`check_plans`.
        contents: of all ranks.

    Raises:
        StateError: names one, and the ranks.
    """
    for name in sorted({name for content in contents for name in content.own}):
        has = [name in content.own for content in contents]
        others = [rank for rank, p in enumerate(plans) if not has[rank] and _has(p, name)]
        if others:
            own = [rank for rank, is_own in enumerate(has) if is_own]
            raise StateError(
                f"{name} is a PerRank on {_listed(own)}, and something else on {_listed(others)}. "
                "Wrap it in PerRank(...) on all ranks that have it",
                others,
            )


def _has(plan: SavePlan, name: str) -> bool:
    names = (".".join(map(str, path)) for path in containers.paths(plan.planner_data))
    return any(one == name or one.startswith(f"{name}.") for one in names)


def _check_containers(plans: Sequence[SavePlan]) -> None:
    """Look for a value, such as None, where another rank has a dictionary, list or object."""
    paths: dict[tuple[Any, ...], str] = {}
    for plan in plans:
        for item in plan.items:
            path = (plan.planner_data or {}).get(item.index.fqn)
            if path is not None:
                paths[path] = item.index.fqn
    for path, name in paths.items():
        for length in range(1, len(path)):
            if outer := paths.get(path[:length]):
                raise StateError(
                    f"{outer} is a value on {_listed(_ranks_of(plans, outer))}, and has {name} in "
                    f"it on {_listed(_ranks_of(plans, name))}. A name of all ranks is "
                    "saved once: give it the same structure on all ranks, or wrap it in "
                    "PerRank(...) on all of them",
                    _ranks_of(plans, outer),
                )


def check_whole(plans: Sequence[SavePlan]) -> None:
    """Look for tensors of which the ranks that save have a part only.

    Args:
        plans: of all ranks, as in :func:`check_plans`.

    Raises:
        StateError: names one.
    """
    parts: dict[str, dict[Any, int]] = {}
    sizes: dict[str, int] = {}
    for plan in plans:
        for item in plan.items:
            if (data := item.tensor_data) is not None:
                name = item.index.fqn
                parts.setdefault(name, {})[item.index.offset] = math.prod(data.chunk.sizes)
                sizes[name] = math.prod(data.size)
    for name, of_name in parts.items():
        if sum(of_name.values()) < sizes[name]:
            raise StateError(
                f"{name} is not whole: the ranks that save have {sum(of_name.values())} of "
                f"{sizes[name]} values of it.\nAll ranks that have a part of it save together"
            )


def _kind(item: WriteItem) -> str | tuple[str, object, object]:
    data = item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        return "no tensor"
    form = "a part of a tensor" if item.type == WriteItemType.SHARD else "a tensor"
    return form, data.size, data.properties.dtype


def _told(plans: Sequence[SavePlan], name: str) -> str:
    ranks: dict[str | tuple[str, object, object], list[int]] = {}
    for rank, plan in enumerate(plans):
        for kind in {_kind(item) for item in plan.items if item.index.fqn == name}:
            ranks.setdefault(kind, []).append(rank)
    return f"{name} is " + ", ".join(
        f"{_text(kind)} on {_listed(on)}" for kind, on in ranks.items()
    )


def _text(kind: str | tuple[str, object, object]) -> str:
    if isinstance(kind, str):
        return kind
    form, size, dtype = kind
    return f"{form} {str(dtype).removeprefix('torch.')} {tuple(size)}"  # type: ignore[arg-type]


def _listed(ranks: Sequence[int]) -> str:
    return name_ranks(ranks, _NAMED)


def _ranks_of(plans: Sequence[SavePlan], name: str) -> list[int]:
    found = (rank for rank, p in enumerate(plans) if any(i.index.fqn == name for i in p.items))
    return list(found)
