"""Tables and ledgers of nodes a, b, c, ..."""

from __future__ import annotations

from undaunted.coordinator.lead.register import FEWEST, Member
from undaunted.coordinator.protocol import Ledger, Seat

LISTENS = "host-{}:1"


def seat(node: str, rank: int, *, incarnation: str = "", address: str | None = None) -> Seat:
    return Seat(
        node=node,
        incarnation=incarnation or f"{node}1",
        address=LISTENS.format(node) if address is None else address,
        group_rank=rank,
        first_rank=2 * rank,
        slots=2,
    )


def table(nodes: str) -> tuple[Seat, ...]:
    return tuple(seat(node, rank) for rank, node in enumerate(nodes))


def committee(nodes: str) -> tuple[Member, ...]:
    return tuple(Member(node, f"{node}1", LISTENS.format(node)) for node in nodes)


def voters(nodes: str) -> set[tuple[str, str]]:
    return {(node, f"{node}1") for node in nodes}


def ledger(nodes: str = "abc", **changes: object) -> Ledger:
    """Round 0 of nodes, led by the first of them; three and more keep the register."""
    keepers = nodes if len(nodes) >= FEWEST else ""
    about = {
        "run_id": "job",
        "epoch": 1,
        "version": 3,
        "leader": nodes[0],
        "committee": committee(keepers),
        "fenced": keepers != "",
        "round": 0,
        "running": True,
        "table": table(nodes),
    }
    return Ledger(**{**about, **changes})
