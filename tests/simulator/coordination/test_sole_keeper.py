"""One launcher keeps the register alone, as fewer than three can reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.coordination.setup import Setup
from tests.simulator.coordination.jobs import S, finish, job, nodes_of_last_round
from undaunted.coordinator import protocol as p
from undaunted.coordinator.policy import messages as m

if TYPE_CHECKING:
    from simulator.coordination.cluster import Cluster
    from simulator.virtual.network import Cut


class Network:
    """The network of a job, in which some nodes may be cut off from all others."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cuts: list[Cut] = []

    def divide(self, *nodes: str) -> None:
        """Cut these off; no nodes: join all again."""
        simulation, others = self._cluster.simulation, self._cluster.machines - set(nodes)
        for cut in self._cuts:
            simulation.heal(cut)
        self._cluster.checker.cut(nodes, 200 * S)
        both = [(nodes, others), (others, nodes)] if nodes else []
        self._cuts = [simulation.cut(frozenset(one), frozenset(other)) for one, other in both]


def start(cluster: Cluster, *nodes: str) -> None:
    for node in nodes:
        cluster.simulation.boot(node)
        cluster.launch(node)


def leave(cluster: Cluster, node: str) -> None:
    cluster.checker.told_to_leave.add(node)
    cluster.tell(cluster.agents[node], m.Preempted(node, 15, "SIGTERM"))


def test_who_hears_of_a_later_keeper_does_not_go_on_from_what_an_earlier_one_had_written() -> None:
    """The first came back without a disk, and first a node came that had missed its hand-over."""
    cluster = job(Setup(1, 1, elastic=True))
    network, simulation = Network(cluster), cluster.simulation
    network.divide("n001")
    simulation.run(20 * S)
    start(cluster, "n002", "n003")
    simulation.run(30 * S)
    leave(cluster, "n000")
    simulation.run(45 * S)
    assert set(nodes_of_last_round(cluster)) == {"n002", "n003"}
    assert not p.has_committee(cluster.checker.ledger)
    (keeper,) = [name for name, agent in cluster.agents.items() if agent.leads]
    (other,) = {"n002", "n003"} - {keeper}
    network.divide("n002", "n003")
    cluster.disks.pop("n000", None)
    start(cluster, "n000")
    simulation.run(47 * S)
    network.divide(keeper)
    simulation.run(90 * S)
    network.divide()
    simulation.run(130 * S)
    assert len({agent.follows for agent in cluster.agents.values()}) == 1
    assert finish(cluster) == "finished"
    assert other
