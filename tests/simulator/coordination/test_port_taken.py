"""Something else has the port of the endpoint when its launcher is started."""

from __future__ import annotations

import pytest

from simulator.coordination.cluster import Cluster
from simulator.coordination.setup import Setup
from tests.simulator.coordination.jobs import S, at, finish, job


@pytest.mark.parametrize("setup", [Setup(1, 1), Setup(3, 1), Setup(2, elastic=True)], ids=str)
def test_the_job_begins_when_the_port_is_free(setup: Setup) -> None:
    cluster = Cluster(setup, 1)
    cluster.occupy("n000", 10 * S)
    cluster.simulation.run(10 * S)
    assert cluster.checker.rounds == 0
    cluster.simulation.run(20 * S)
    assert cluster.checker.job_runs
    assert {agent.follows for agent in cluster.agents.values()} == {cluster.agents["n000"].follows}
    assert finish(cluster) == "finished"


def test_a_launcher_without_its_port_joins_those_who_lead_meanwhile() -> None:
    cluster = job(Setup(3, 1), faults=[at(10, "kill", "n000", lasts=4)])
    cluster.simulation.run(11 * S)
    cluster.occupy("n000", 60 * S)
    cluster.simulation.run(40 * S)
    agents = cluster.agents.values()
    assert cluster.checker.job_runs
    assert "n000" not in [agent.name for agent in agents if agent.leads]
    assert len({agent.follows for agent in agents}) == 1
    assert finish(cluster) == "finished"


def test_a_launcher_without_its_port_may_lead_later() -> None:
    """The others reach it where it listens."""
    away = [at(10, "kill", "n000", lasts=4), at(40, "power", "n001"), at(60, "power", "n002")]
    cluster = job(Setup(3, 2, elastic=True), 1, away)
    cluster.simulation.run(11 * S)
    cluster.occupy("n000", 100 * S)
    cluster.simulation.run(90 * S)
    alive = [agent for agent in cluster.agents.values() if agent.seat in cluster.checker.alive]
    assert cluster.agents["n000"] in alive
    assert cluster.checker.job_runs
    assert len({agent.follows for agent in alive}) == 1
    assert finish(cluster) == "finished"
