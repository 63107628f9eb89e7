"""A leader that stood still for longer than a lease, in a job that has no restart."""

from __future__ import annotations

import pytest

from simulator.coordination.setup import Setup
from tests.simulator.coordination.jobs import S, at, finish, job

NO_RESTART = Setup(3, 0, max_restarts=0)
ALONE = Setup(2, 0, standalone=True, max_restarts=0)


@pytest.mark.parametrize("etcd", [False, True])
@pytest.mark.parametrize("lasts", [6, 12])
def test_ends_as_the_others_have(lasts: float, etcd: bool) -> None:
    setup = Setup(3, 0, max_restarts=0, etcd=etcd)
    cluster = job(setup)
    leader = next(name for name, agent in cluster.agents.items() if agent.leads)
    cluster.pause(leader)
    cluster.simulation.run(round((4 + lasts) * S))
    cluster.resume(leader, cluster.agents[leader].seat)
    cluster.simulation.run(60 * S)
    ((outcome, reason),) = set(cluster.checker.ended_as.values())
    assert (outcome, leader in reason) == ("failed", True)
    assert len(cluster.checker.ended_as) == 3


@pytest.mark.parametrize("setup", [Setup(2, 0, max_restarts=0), ALONE])
@pytest.mark.parametrize("lasts", [4, 15])
def test_restarts_nothing_where_nobody_could_replace_it(setup: Setup, lasts: float) -> None:
    leader = "coordinator" if setup.standalone else "n000"
    cluster = job(setup, faults=[at(10, "pause", leader, lasts=lasts)])
    cluster.simulation.run(60 * S)
    assert cluster.checker.ledger.round == 0
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("node", ["n000", "n001"])
@pytest.mark.parametrize("etcd", [False, True])
def test_ends_soon_where_the_others_have(etcd: bool, node: str) -> None:
    cluster = job(Setup(4, 2, etcd=etcd), faults=[at(5, "pause", node, lasts=100)])
    cluster.simulation.run(25 * S)
    cluster.finish()
    cluster.simulation.run(104 * S)
    assert {name for name, _ in cluster.checker.alive} == {node}
    cluster.simulation.run(125 * S)
    assert not cluster.checker.alive


def test_says_that_it_stood_still_where_nobody_is_left_to_tell_it() -> None:
    cluster = job(NO_RESTART, faults=[at(10, "pause", "n000", lasts=25)])
    cluster.simulation.run(200 * S)
    ends = {node: end for (node, _), end in cluster.checker.ended_as.items()}
    assert {how for how, _ in ends.values()} == {"failed"}
    assert all(words in ends["n000"][1] for words in ("node n000", "stood still"))
    assert ends["n001"] == ends["n002"]
