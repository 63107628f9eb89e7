"""Replicas of a model are compared every so many steps; the one that differs is named by a vote.

replicas = Replicas(model, every=100)
for iteration in range(steps):
    train(iteration)  # forward, backward, optimizer
    replicas(iteration)
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module

from undaunted.base import torch_ranks
from undaunted.base.ids import node_of_rank
from undaunted.digests.each import BYTES, digests_of_each, how
from undaunted.digests.tensors import what_it_is
from undaunted.progress.api import event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed import ProcessGroup

    Compare = Callable[[], Mapping[str, Tensor | None]]

_NAMES = 8  # in a message
_LOG = logging.getLogger("undaunted")


@dataclass(frozen=True)
class Difference:
    """Replicas that should be alike are not.

    Attributes:
        iteration: as given to the check.
        ranks: global ranks that were compared.
        names: of the tensors in which these ranks, and no others, differ.
        guilty: global ranks that hold something else than most of them; () = not known which.
        nodes: names of the nodes of the guilty ranks.
    """

    iteration: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    guilty: tuple[int, ...]
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        what = ", ".join(self.names[:_NAMES])
        if len(self.names) > _NAMES:
            what += f" and {len(self.names) - _NAMES} more"
        if not self.guilty:
            ranks = ", ".join(map(str, self.ranks))
            return f"ranks {ranks} differ in {what}; it is not known which of them is wrong"
        places = zip(self.guilty, self.nodes, strict=True)
        who = ", ".join(f"rank {rank} on {node}" for rank, node in places)
        holds = "holds" if len(self.guilty) == 1 else "hold"
        return f"{who} {holds} something else than most of {len(self.ranks)} replicas in {what}"


class ReplicasDifferError(RuntimeError):
    """Replicas are not alike. Raised on all ranks, also those whose own replicas are.

    Attributes:
        differences: of all ranks that were compared; one for each set of guilty ranks.
    """

    def __init__(self, differences: Sequence[Difference]) -> None:
        """Say which differ."""
        self.differences = tuple(differences)
        text = "; ".join(map(str, differences))
        super().__init__(f"after iteration {differences[0].iteration} {text}")


class Replicas:
    """Compares tensors that all ranks of a group should hold alike: each bit of them.

    Every rank takes a digest of each tensor. 32 bytes of each rank are exchanged, and only if those
    differ the digests of all tensors. The digest of more than half of the ranks counts as right.
    Then all ranks of the job hear of it, so that all can do the same.

    A ``DTensor`` is compared among the ranks that hold the same part of it, along those dimensions
    of its mesh in which it is replicated. Parameters of a ``Module`` are compared, no buffers:
    ranks may have others of those.

    Args:
        what: a module, or a function that returns tensors by name, such as reduced gradients; None
            in the place of a tensor = there is none yet.
        every: compare after iterations that are multiples of this.
        group: the ranks that hold the same, for tensors that are no DTensor; None = all ranks. A
            rank that is in no such group gives what ``torch.distributed.new_group`` has returned.
        on_difference: called with what was found, instead of `ReplicasDifferError`.

    Raises:
        ValueError: `every` is not a number from 1.
    """

    def __init__(
        self,
        what: Module | Compare,
        *,
        every: int = 100,
        group: ProcessGroup | None = None,
        on_difference: Callable[[tuple[Difference, ...]], object] | None = None,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}: give a number of iterations from 1")
        if not callable(what):
            raise TypeError(f"{what!r}: give a module, or a function that returns tensors by name")
        self._compare = _parameters(what) if isinstance(what, Module) else what
        self._every = every
        self._group = group
        self._on_difference = on_difference

    def __call__(self, iteration: int) -> None:
        """Compare, if it is due. All ranks call it after the same iterations.

        Args:
            iteration: its number.

        Raises:
            ReplicasDifferError: they do.
            ValueError: there is nothing to compare with: a tensor has no replica, or ranks hold
                tensors of different names, types or shapes.
        """
        if iteration % self._every == 0:
            self.check(iteration)

    def check(self, iteration: int) -> None:
        """Compare now. As `__call__`."""
        tensors = dict(self._compare())
        held = {name: one for name, one in tensors.items() if one is not None}
        _refuse_without_content(held)
        digests = dict(zip(held, digests_of_each(held.values()), strict=True))
        found = [
            _compare(iteration, group, names, tensors, digests)
            for group, names in _by_group(tensors, self._group)
        ]
        everyone = _of_all_ranks(iteration, found)
        if not everyone:
            return
        error = ReplicasDifferError(everyone)
        for at, difference in enumerate(everyone):
            if torch_ranks.place()[0] == (difference.guilty or difference.ranks)[0]:
                event("replicas_differ", f"iteration {iteration}: {difference}")
                if at == 0:
                    _LOG.error("%s", error)
        if self._on_difference is None:
            raise error
        self._on_difference(error.differences)


def vote(
    iteration: int,
    ranks: Sequence[int],
    names: Sequence[str],
    digests: Sequence[Sequence[bytes]],
    nodes: Sequence[str],
) -> list[Difference]:
    """Say which tensors differ, and who holds something else than more than half of the ranks.

    Args:
        iteration: of the check.
        ranks: global ranks.
        names: of the tensors.
        digests: of each rank, those of all tensors.
        nodes: of the ranks.

    Returns:
        One difference for each set of guilty ranks.
    """
    differing: dict[tuple[int, ...], list[str]] = {}
    for name, column in zip(names, zip(*digests, strict=True), strict=True):
        digest, count = Counter(column).most_common(1)[0]
        if count == len(ranks):
            continue
        others = (at for at, other in enumerate(column) if other != digest)
        differing.setdefault(tuple(others) if 2 * count > len(ranks) else (), []).append(name)
    return [
        Difference(
            iteration,
            tuple(ranks),
            tuple(of_these),
            tuple(ranks[at] for at in guilty),
            tuple(nodes[at] for at in guilty),
        )
        for guilty, of_these in differing.items()
    ]


def _compare(
    iteration: int,
    group: ProcessGroup | None,
    names: Sequence[str],
    tensors: Mapping[str, Tensor | None],
    digests: Mapping[str, bytes],
) -> list[Difference] | str:
    """Return what differs in a group, or why its ranks cannot be compared."""
    layout = [how(), *(f"{name}: {_what(tensors[name])}" for name in names)]
    mine = b"".join(digests[name] for name in names if name in digests)
    answers = set(
        torch_ranks.gather_bytes(
            _hash(layout) + hashlib.blake2b(mine, digest_size=BYTES).digest(), group
        )
    )
    if len({one[:BYTES] for one in answers}) > 1:
        return _unlike(layout, group)
    if len(answers) == 1:
        return []
    rows = torch_ranks.gather_bytes(mine, group)
    nodes = torch_ranks.gather(node_of_rank(os.environ), group)
    each = [[row[at : at + BYTES] for at in range(0, len(row), BYTES)] for row in rows]
    held = [name for name in names if name in digests]
    return vote(iteration, torch_ranks.members(group), held, each, nodes)


def _unlike(layout: Sequence[str], group: ProcessGroup | None) -> str:
    """Say what two ranks have that cannot be compared. All ranks of a group call it."""
    rows = torch_ranks.gather(list(layout), group)
    ranks = torch_ranks.members(group)
    at, other = next((at, row) for at, row in enumerate(rows) if row != rows[0])
    pairs = itertools.zip_longest(rows[0], other)
    first, second = next(pair for pair in pairs if pair[0] != pair[1])
    return (
        "ranks hold tensors of different names, types or shapes, or xxhash is installed on some of "
        f"them only: rank {ranks[0]} has {first or 'no more'}, rank {ranks[at]} has "
        f"{second or 'no more'}; give a group of ranks that hold the same"
    )


def _of_all_ranks(iteration: int, found: Sequence[list[Difference] | str]) -> list[Difference]:
    """Return what differs in any group.

    Raises:
        ValueError: ranks of any group cannot be compared.
    """
    (any_has,) = torch_ranks.any_rank([any(found)])
    if not any_has:
        return []
    refused = [one for one in found if isinstance(one, str)]
    mine = [
        [one.ranks, one.names, one.guilty, one.nodes]
        for differences in found
        if not isinstance(differences, str)
        for one in differences
    ]
    everyone: dict[Difference, None] = {}  # each once, in the order of ranks
    for its_refused, its_found in torch_ranks.gather([refused, mine]):
        if its_refused:
            raise ValueError(its_refused[0])
        everyone |= dict.fromkeys(Difference(iteration, *map(tuple, one)) for one in its_found)
    return [*everyone]


def _what(tensor: Tensor | None) -> str:
    return "none" if tensor is None else what_it_is(tensor)


def _refuse_without_content(tensors: Mapping[str, Tensor]) -> None:
    for name, one in tensors.items():
        if not isinstance(one, Tensor):
            raise TypeError(f"{name} is a {type(one).__name__}: give tensors by name")
        if one.is_meta:
            raise ValueError(f"{name} is on the device meta: it has no numbers to compare")


def _by_group(
    tensors: Mapping[str, Tensor | None], default: ProcessGroup | None
) -> list[tuple[ProcessGroup | None, list[str]]]:
    """Return groups of ranks, and what is compared in each of them.

    The default one is always among them: a rank that has nothing there may have peers that do.
    """
    groups: dict[ProcessGroup | None, list[str]] = {default: []}
    for name, tensor in tensors.items():
        for group in _groups_of(name, tensor) if hasattr(tensor, "device_mesh") else [default]:
            groups.setdefault(group, []).append(name)
    return [one for one in groups.items() if torch_ranks.is_member(one[0])]


def _groups_of(name: str, tensor: Any) -> list[ProcessGroup]:
    """Return the groups of ranks that hold the same part of a DTensor.

    Raises:
        ValueError: no other rank does.
    """
    mesh, placements = tensor.device_mesh, tensor.placements
    replicated = [
        dimension
        for dimension, placement in enumerate(placements)
        if placement.is_replicate() and mesh.size(dimension) > 1
    ]
    if not replicated or any(placement.is_partial() for placement in placements):
        raise ValueError(
            f"no two ranks hold the same part of {name}, which is {placements} on a mesh of "
            f"{tuple(mesh.shape)}: give Replicas a function that returns only tensors with replicas"
        )
    return [mesh.get_group(dimension) for dimension in replicated]


def _parameters(module: Module) -> Compare:
    sharded = getattr(
        sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", type(None)
    )
    if any(isinstance(one, sharded) for one in module.modules()):
        raise ValueError(
            "FullyShardedDataParallel does not say which part of a parameter a rank holds: shard "
            "with fully_shard, or give Replicas a function that returns tensors with replicas"
        )
    return lambda: dict(module.named_parameters())


def _hash(texts: Sequence[str]) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=BYTES).digest()
