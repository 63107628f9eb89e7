"""Who keeps copies for whom, and who sends what to whom: pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from undaunted.checkpointing.errors import NoCheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

T = TypeVar("T", bound="Hashable")


class NoReplicasAvailableError(NoCheckpointError):
    """Nobody has what a rank needs."""


@dataclass(frozen=True)
class ExchangePlanEntry(Generic[T]):
    """One transfer.

    Attributes:
        sender: global rank that has it.
        receiver: global rank that needs it.
        id_: what is sent.
    """

    sender: int
    receiver: int
    id_: T


class ExchangePlan(Generic[T]):
    """Transfers, in the order in which all ranks of a group carry them out.

    Args:
        group: a `GroupWrapper`; None where only the entries matter.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self._entries: list[ExchangePlanEntry[T]] = []

    def plan(self, *, sender: int, receiver: int, id_: T) -> None:
        """Add a transfer between two global ranks."""
        self._entries.append(ExchangePlanEntry(sender, receiver, id_))

    @property
    def entries(self) -> list[ExchangePlanEntry[T]]:
        """All transfers."""
        return list(self._entries)

    def required_ids(self, rank: int | None = None) -> list[T]:
        """Return what a rank has to send.

        Args:
            rank: global rank; None = this one.
        """
        if rank is None:
            rank = self.group.my_global_rank
        return [entry.id_ for entry in self._entries if entry.sender == rank]


def parse_group_sequence(
    replication_jump: int, replication_factor: int, world_size: int
) -> list[list[int]]:
    """Return the groups of ranks that keep copies for each other.

    Ranks that are ``replication_jump`` apart are on different nodes, when that is the number of
    ranks of a node; ``replication_factor`` of them, one after the other, make a group.

    >>> parse_group_sequence(2, 2, 8)
    [[0, 2], [1, 3], [4, 6], [5, 7]]

    Raises:
        ValueError: the world cannot be divided into such groups.
    """
    if replication_jump < 1 or replication_factor < 1:
        raise ValueError(
            f"replication_jump and replication_factor must be at least 1, not {replication_jump} "
            f"and {replication_factor}"
        )
    span = replication_jump * replication_factor
    if world_size % span:
        raise ValueError(
            f"{world_size} ranks cannot be divided into groups of {replication_factor} that are "
            f"{replication_jump} apart: the number of ranks must be a multiple of {span}"
        )
    return [
        list(range(start + first, start + span, replication_jump))
        for start in range(0, world_size, span)
        for first in range(replication_jump)
    ]


def plan_transfers(
    available: Mapping[int, Collection[T]], wanted: Mapping[int, Collection[T]]
) -> list[ExchangePlanEntry[T]]:
    """Return the fewest transfers after which all have what they want.

    Who has it already gets nothing; else the one of those who have it that has least to send,
    the first of equals. The same on all ranks.

    Args:
        available: by global rank, what it has.
        wanted: by global rank, what it needs.

    Raises:
        NoReplicasAvailableError: nobody has something that is wanted.
    """
    sent = dict.fromkeys(available, 0)
    entries: list[ExchangePlanEntry[T]] = []
    for receiver, ids in sorted(wanted.items()):
        for id_ in ids:
            if id_ in available.get(receiver, ()):
                continue
            holders = [rank for rank in sorted(available) if id_ in available[rank]]
            if not holders:
                raise NoReplicasAvailableError(
                    f"rank {receiver} needs {id_}, which no rank has: its disk and those of its "
                    "replicas are gone or damaged"
                )
            sender = min(holders, key=lambda rank: sent[rank])
            sent[sender] += 1
            entries.append(ExchangePlanEntry(sender, receiver, id_))
    return entries
