"""What a record says: ranks out of joins, reasons, and whether a fault repeats itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

# Of thousands of ranks that fail since one has, the first are enough.
MAX_REASONS = 64
MAX_TEXT = 1000


class ContradictionError(Exception):
    """Ranks say of themselves what cannot all be true. The message is for people."""


def make_record(
    call: int,
    epoch: int,
    joins: Mapping[int, m.Join],
    waiting: Mapping[int, m.Join],
    reasons: tuple[m.Reason, ...] = (),
) -> m.Record:
    """Make the record of an epoch.

    Args:
        call: its call.
        epoch: its number.
        joins: of the members, by job rank.
        waiting: of processes that take the place of lost ones.
        reasons: why the epoch before was stopped.

    Raises:
        ContradictionError: joins do not agree about the ranks of the epoch before.
    """
    size, ranks = _ranks(epoch, joins)
    free = [rank for rank in range(size) if rank not in ranks]
    joined: dict[int, int] = {}
    for job_rank in sorted(waiting):
        if free:
            joined[job_rank] = free.pop(0)
        else:
            joined[job_rank] = size
            size += 1
    everybody = {**joins, **waiting}
    rank_of = {job_rank: rank for rank, job_rank in ranks.items()} | joined
    members = tuple(sorted(everybody))
    stores = (everybody[job_rank].store for job_rank in members)
    info = {rank_of[each]: everybody[each].info for each in members}
    return m.Record(
        call=call,
        epoch=epoch,
        members=members,
        world_size=size,
        terminated=tuple(free),
        joined=joined,
        reasons=tuple(_with_rank(reason, rank_of) for reason in reasons),
        store=next((store for store in stores if store), ""),
        info={rank: what for rank, what in sorted(info.items()) if what is not None},
    )


def _ranks(epoch: int, joins: Mapping[int, m.Join]) -> tuple[int, dict[int, int]]:
    """The world's size and the job rank of every rank, in the epoch before."""
    size = next(iter(joins.values())).world_size
    ranks: dict[int, int] = {}
    for job_rank, join in sorted(joins.items()):
        if join.world_size != size:
            raise ContradictionError(
                f"job rank {job_rank} says that epoch {epoch} begins with {join.world_size} ranks, "
                f"others say {size}"
            )
        if not 0 <= join.rank < size:
            raise ContradictionError(
                f"job rank {job_rank} says that it is rank {join.rank} of {size}"
            )
        other = ranks.setdefault(join.rank, job_rank)
        if other != job_rank:
            raise ContradictionError(
                f"job ranks {other} and {job_rank} both say that they are rank {join.rank}; rank "
                "assignments must give every rank its own"
            )
    return size, ranks


def _with_rank(reason: m.Reason, rank_of: Mapping[int, int]) -> m.Reason:
    if reason.rank >= 0 or reason.job_rank not in rank_of:
        return reason
    return msgspec.structs.replace(reason, rank=rank_of[reason.job_rank])


def add_reasons(reasons: tuple[m.Reason, ...], more: Iterable[m.Reason]) -> tuple[m.Reason, ...]:
    """Append those that are new, as long as there is room; texts are cut.

    In the order in which they came, which need not be the one in which they happened: who notices
    that a peer is gone may be faster than who watches that peer. So consequences come last.
    """
    result = dict.fromkeys([*reasons, *map(_cut, more)])
    return tuple(sorted(result, key=lambda reason: reason.consequence))[:MAX_REASONS]


def _cut(reason: m.Reason) -> m.Reason:
    if len(reason.text) <= MAX_TEXT:
        return reason
    return msgspec.structs.replace(reason, text=reason.text[: MAX_TEXT - 3] + "...")


def slowest(joins: Iterable[m.Join]) -> dict[str, tuple[float, int]]:
    """The longest time of every phase of the recovery, and whose it was."""
    result: dict[str, tuple[float, int]] = {}
    for join in joins:
        for name, seconds in join.phases.items():
            if name not in result or seconds > result[name][0]:
                result[name] = (seconds, join.job_rank)
    return result


@dataclass(slots=True)
class Streak:
    """The same fault again and again, without progress of any rank in between."""

    _count: int = 0
    _fingerprints: frozenset[str] = frozenset()
    _progress: dict[int, int] = field(default_factory=dict)

    def repeats(
        self,
        reasons: tuple[m.Reason, ...],
        joins: Collection[m.Join],
        limit: int,
        *,
        long: bool = False,
    ) -> bool:
        """Take in why an epoch was stopped; return whether it was so ``limit`` times in a row.

        Args:
            reasons: of the stop.
            joins: say how far the ranks have come.
            limit: 0 = there is none.
            long: the epoch has run for so long that this counts as progress.
        """
        progress = {join.job_rank: join.progress for join in joins}
        known = self._progress
        moved = long or any(
            count > known.get(job_rank, count) for job_rank, count in progress.items()
        )
        self._progress = progress
        fingerprints = frozenset(each.fingerprint for each in reasons if each.fingerprint)
        same = fingerprints & self._fingerprints
        if same and not moved:
            self._count += 1
            self._fingerprints = same
        else:
            self._count = 1 if fingerprints else 0
            self._fingerprints = fingerprints
        return 0 < limit <= self._count
