"""Tables and ledgers of nodes a, b, c, ..."""

from __future__ import annotations

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


def voters(nodes: str) -> set[tuple[str, str]]:
    return {(node, f"{node}1") for node in nodes}


def ledger(nodes: str = "abc", **changes: object) -> Ledger:
    """Round 0 of nodes that have votes, led by the first of them."""
    about = {
        "run_id": "job",
        "epoch": 1,
        "version": 3,
        "leader": nodes[0],
        "casting_vote": nodes[0],
        "round": 0,
        "running": True,
        "table": table(nodes),
    }
    return Ledger(**{**about, **changes})
