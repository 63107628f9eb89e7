"""The node of the leader leaves in order: the job goes on, or ends with that reason."""

from __future__ import annotations

import pytest

from simulator.coordination import cluster as cluster_module
from simulator.coordination.setup import Setup
from tests.simulator.coordination.jobs import S, at, finish, job, nodes_of_last_round

GOES_ON = [Setup(1, 1), Setup(2, 1), Setup(2, 1, elastic=True), Setup(2, 2), Setup(4, 2)]


@pytest.mark.parametrize("how", ["leave", "exclude"])
@pytest.mark.parametrize("setup", GOES_ON, ids=str)
def test_the_others_go_on(setup: Setup, how: str) -> None:
    cluster = job(setup, faults=[at(6, how, "n000")])
    cluster.simulation.run(30 * S)
    agents = [each for each in cluster.agents.values() if each.seat in cluster.checker.alive]
    assert "n000" not in [each.name for each in agents]
    assert cluster.checker.job_runs
    assert "n000" not in nodes_of_last_round(cluster)
    assert len({each.follows for each in agents}) == 1
    assert cluster.checker.ledger.restarts_used == (how == "exclude")
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("seed", range(10))
def test_nobody_is_elected_beside_the_one_that_was_named(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its launcher was, connections are refused at once: it has ended."""
    monkeypatch.setattr(cluster_module, "_DEAF", 0.0)
    cluster = job(Setup(4, 2), seed, faults=[at(8, "leave", "n000")])
    cluster.simulation.run(10 * S)
    assert cluster.checker.job_runs
    assert cluster.checker.rounds == 2
    assert cluster.checker.takeovers == 1
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("setup", [Setup(1), Setup(2), Setup(3)], ids=str)
def test_nothing_is_left_to_lead(setup: Setup) -> None:
    cluster = job(setup, faults=[at(6, "leave", "n000")])
    cluster.simulation.run(60 * S)
    assert {how for how, _ in cluster.checker.ended_as.values()} == {"preempted"}
    assert not cluster.checker.alive


def test_too_few_are_left_though_spares_come_back_and_a_node_is_cut_off() -> None:
    away = [at(5, "power", name, lasts=10) for name in ("n003", "n004")]
    cut_off = at(13.1, "isolate", "n002", lasts=40)
    cluster = job(Setup(3, 2), faults=[*away, at(13, "leave", "n001"), cut_off])
    cluster.simulation.run(60 * S)
    assert {how for how, _ in cluster.checker.ended_as.values()} == {"preempted"}
    assert not cluster.checker.alive


def test_its_launcher_is_started_again_as_a_spare() -> None:
    cluster = job(Setup(2, 1), faults=[at(6, "leave", "n000")])
    cluster.simulation.run(18 * S)
    cluster.launch("n000")
    cluster.simulation.run(40 * S)
    leading = [each.name for each in cluster.agents.values() if each.leads]
    assert leading
    assert "n000" not in leading
    assert cluster.agents["n000"].follows
    assert cluster.checker.rounds == 2
    assert finish(cluster) == "finished"


def test_two_of_three_leave_at_one_moment() -> None:
    """Others keep the register before they go."""
    cluster = job(Setup(1, 2), faults=[at(8, "leave", "n001"), at(8.0001, "leave", "n002")])
    cluster.simulation.run(30 * S)
    assert nodes_of_last_round(cluster) == ["n000"]
    assert cluster.checker.job_runs
    assert finish(cluster) == "finished"
