"""The tables of a job's rounds, as its nodes' journals tell them. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.text import format_ranges
from undaunted.coordinator.protocol import Seat
from undaunted.journal.events import RoundStarted
from undaunted.journal.job.launches import gaps

if TYPE_CHECKING:
    from undaunted.journal.job.launches import Attempt, Launch

# The name of a node of which there is no journal begins so.
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Table:
    """Who takes part in a round, by what the nodes were told.

    Attributes:
        number: of the round.
        seats: in the order of their ranks; an unknown node has those that no journal tells of.
        launches: those that tell of it.
        missing: ranks no journal tells of, in ranges.
    """

    number: int
    seats: tuple[Seat, ...]
    launches: list[Launch]
    missing: tuple[range, ...]


def tables_of(attempt: Attempt) -> list[Table]:
    """Return the tables of all rounds, in the order of their numbers; two of one number are wrong.

    Who was told the same number, address, port and size was told of the same table.
    """
    by_order: dict[tuple[int, str, int, int], list[Launch]] = {}
    for launch in attempt.launches:
        for one in launch.state.ordered():
            start = one.first(RoundStarted)
            if start is not None:
                order = (one.number, start.master_addr, start.master_port, start.world_size)
                by_order.setdefault(order, []).append(launch)
    return [
        _table(number, size, launches)
        for (number, _, _, size), launches in sorted(by_order.items(), key=lambda each: each[0])
    ]


def voter(launch: Launch) -> tuple[str, str]:
    """Return who a launch is, as `coordinator.lead.register` has it."""
    return (launch.node, str(launch.index))


def _table(number: int, size: int, launches: list[Launch]) -> Table:
    told = [(launch.ranks(number), voter(launch)) for launch in launches]
    known = {rank for ranks, _ in told for rank in ranks}
    missing = gaps(size, known)
    places = [(ranks[0] if ranks else 0, len(ranks), who) for ranks, who in told]
    places += [
        (ranks[0], len(ranks), (f"{UNKNOWN} (ranks {format_ranges([ranks])})", ""))
        for ranks in missing
    ]
    return Table(
        number=number,
        seats=tuple(
            Seat(
                node=node,
                incarnation=incarnation,
                address="",
                group_rank=group_rank,
                first_rank=first_rank,
                slots=slots,
            )
            for group_rank, (first_rank, slots, (node, incarnation)) in enumerate(sorted(places))
        ),
        launches=launches,
        missing=missing,
    )
