"""What `undaunted ctl` orders, in a job whose nodes run."""

from __future__ import annotations

import pytest

from simulator.coordination.setup import BY_HAND, Setup
from tests.simulator.coordination.jobs import S, finish, job, nodes_of_last_round, order


@pytest.mark.parametrize("save", [False, True])
def test_a_restart_costs_nothing(save: bool) -> None:
    cluster = job(Setup(3, 1, max_restarts=0), faults=[order(6, "restart", "n002", save=save)])
    cluster.simulation.run(40 * S)
    assert cluster.checker.rounds == 2
    assert cluster.checker.ledger.restarts_used == 0
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("node", ["n000", "n002"])
def test_a_node_that_is_excluded_is_started_again_in_vain(node: str) -> None:
    cluster = job(Setup(3, 1), faults=[order(6, "exclude", node, lasts=30)])
    cluster.simulation.run(60 * S)
    assert cluster.checker.job_runs
    assert node not in nodes_of_last_round(cluster)
    ended = [seat[0] for seat, (how, _) in cluster.checker.ended_as.items() if how == "excluded"]
    assert ended == [node, node]
    assert finish(cluster) == "finished"


def test_a_node_that_the_job_needs_stays() -> None:
    cluster = job(Setup(3), faults=[order(6, "exclude", "n002", lasts=5)])
    cluster.simulation.run(20 * S)
    assert cluster.checker.rounds == 1
    assert finish(cluster) == "finished"


@pytest.mark.parametrize(("save", "how"), [(False, "no_restart"), (True, "preempted")])
def test_the_end(save: bool, how: str) -> None:
    cluster = job(Setup(3, 1), faults=[order(6, "stop", "n002", save=save)])
    cluster.simulation.run(40 * S)
    assert not cluster.checker.alive
    ended = cluster.checker.ended_as.values()
    assert {outcome for outcome, _ in ended} == {how}
    assert all(BY_HAND in why for _, why in ended)


def test_limits_stop_nobody() -> None:
    cluster = job(Setup(3, 1), faults=[order(6, "limits", "n002")])
    cluster.simulation.run(20 * S)
    assert cluster.checker.rounds == 1
    assert finish(cluster) == "finished"
