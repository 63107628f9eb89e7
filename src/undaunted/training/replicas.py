"""Replicas of a model are compared every so many steps; the one that differs is named by a vote.

replicas = Replicas(model, every=100)
for iteration in range(steps):
    train(iteration)  # forward, backward, optimizer
    replicas(iteration)
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from undaunted.base.ids import node_name
from undaunted.digests.each import BYTES, digests_of_each, how
from undaunted.digests.tensors import what_it_is
from undaunted.progress.api import event
from undaunted.training import exchange
from undaunted.training.rerun import reduction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

    Compare = Callable[[], Mapping[str, Tensor]]

_NAMES = 8  # in a message
_NODE_BYTES = 128
_LOG = logging.getLogger("undaunted")


@dataclass(frozen=True)
class Difference:
    """Replicas that should be alike are not.

    Attributes:
        iteration: as given to the check.
        ranks: global ranks that were compared.
        names: of the tensors that differ.
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
        return f"{who} holds something else than most of {len(self.ranks)} replicas in {what}"


class ReplicasDifferError(RuntimeError):
    """Replicas are not alike. Raised on all ranks that were compared.

    Attributes:
        differences: one for each group of ranks that this rank is compared in.
    """

    def __init__(self, differences: Sequence[Difference]) -> None:
        """Say which differ."""
        self.differences = tuple(differences)
        text = "; ".join(map(str, differences))
        super().__init__(f"after iteration {differences[0].iteration} {text}")


class Replicas:
    """Compares tensors that all ranks of a group should hold alike: each bit of them.

    Every rank takes a digest of each tensor. 32 bytes of each rank are exchanged, and only if those
    differ the digests of all tensors. What more than half of the ranks hold is taken to be right.

    A ``DTensor`` is compared among the ranks that hold the same part of it, along those dimensions
    of its mesh in which it is replicated. Parameters of a ``Module`` are compared, no buffers:
    ranks may have others of those.

    Args:
        what: a module, or a function that returns tensors by name, such as reduced gradients.
        every: compare after iterations that are multiples of this.
        group: the ranks that hold the same, for tensors that are no DTensor; None = all ranks.
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
        if every < 1:
            raise ValueError(f"every is {every!r}: give a number of iterations from 1")
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
        digests = dict(zip(tensors, digests_of_each(tensors.values()), strict=True))
        found = [
            difference
            for group, names in _by_group(tensors, self._group)
            if (difference := _compare(iteration, group, names, tensors, digests)) is not None
        ]
        if not found:
            return
        error = ReplicasDifferError(found)
        for difference in found:
            if reduction.place()[0] in (difference.guilty or difference.ranks)[:1]:
                event("replicas_differ", f"iteration {iteration}: {difference}")
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
) -> Difference | None:
    """Say which tensors differ, and who holds something else than more than half of the ranks.

    Args:
        iteration: of the check.
        ranks: global ranks.
        names: of the tensors.
        digests: of each rank, those of all tensors.
        nodes: of the ranks.
    """
    differing, guilty = [], set()
    for name, column in zip(names, zip(*digests, strict=True), strict=True):
        digest, count = Counter(column).most_common(1)[0]
        if count == len(ranks):
            continue
        differing.append(name)
        if 2 * count > len(ranks):
            guilty |= {at for at, other in enumerate(column) if other != digest}
    if not differing:
        return None
    return Difference(
        iteration,
        tuple(ranks),
        tuple(differing),
        tuple(ranks[at] for at in sorted(guilty)),
        tuple(nodes[at] for at in sorted(guilty)),
    )


def _compare(
    iteration: int,
    group: ProcessGroup | None,
    names: Sequence[str],
    tensors: Mapping[str, Tensor],
    digests: Mapping[str, bytes],
) -> Difference | None:
    layout = _hash([how(), *(f"{name} {what_it_is(tensors[name])}" for name in names)])
    mine = b"".join(digests[name] for name in names)
    answers = set(
        exchange.gather(layout + hashlib.blake2b(mine, digest_size=BYTES).digest(), group)
    )
    ranks = exchange.members(group)
    if len({one[:BYTES] for one in answers}) > 1:
        raise ValueError(
            f"ranks {', '.join(map(str, ranks))} hold tensors of different names, types or shapes, "
            "or xxhash is installed on some of them only: give a group of ranks that hold the same"
        )
    if len(answers) == 1:
        return None
    rows = exchange.gather(mine, group)
    nodes = exchange.gather_texts(node_name(os.environ), _NODE_BYTES, group)
    each = [[row[at : at + BYTES] for at in range(0, len(row), BYTES)] for row in rows]
    return vote(iteration, ranks, names, each, nodes)


def _by_group(
    tensors: Mapping[str, Tensor], default: ProcessGroup | None
) -> list[tuple[ProcessGroup | None, list[str]]]:
    """Return groups of ranks, and what is compared in each of them."""
    groups: dict[ProcessGroup | None, list[str]] = {}
    for name, tensor in tensors.items():
        for group in _groups_of(name, tensor) if hasattr(tensor, "device_mesh") else [default]:
            groups.setdefault(group, []).append(name)
    return [*groups.items()]


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
