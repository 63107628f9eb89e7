"""Small jobs for the tests of the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.coordination.cluster import Cluster
from simulator.coordination.faults import ORDERS, Fault, Nemesis
from simulator.coordination.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Sequence

S = 1_000_000_000
FOUR = Setup(4, 1, ordered=True)


def job(setup: Setup = FOUR, seed: int = 1, faults: Sequence[Fault] = ()) -> Cluster:
    """A job that runs, with faults to come."""
    cluster = Cluster(setup, seed)
    Nemesis(cluster, faults)
    cluster.simulation.run(4 * S)
    assert cluster.checker.job_runs
    return cluster


def at(seconds: float, kind: str, *nodes: str, lasts: float = 0, to: str = "") -> Fault:
    return Fault(round(seconds * S), kind, nodes, round(lasts * S), to)


def order(seconds: float, what: str, node: str, *, lasts: float = 0, save: bool = False) -> Fault:
    choice = ORDERS.index(what) + len(ORDERS) * save
    return Fault(round(seconds * S), "order", (node,), round(lasts * S), choice=choice)


def finish(cluster: Cluster) -> str:
    """Let the work be done; return how the job ended."""
    cluster.finish()
    cluster.simulation.run(cluster.simulation.now + 30 * S)
    assert not cluster.checker.alive
    return cluster.checker.job_outcome


def nodes_of_last_round(cluster: Cluster) -> list[str]:
    return [seat.node for seat in cluster.checker.ledger.table]
