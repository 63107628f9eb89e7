"""One fault at a time: what the simulated job does is what a real one would."""

from __future__ import annotations

import pytest

from simulator.coordination.cluster import why_beyond_help
from simulator.coordination.setup import Setup
from tests.simulator.coordination.jobs import FOUR, S, at, finish, job, nodes_of_last_round

ALL = ["n000", "n001", "n002", "n003"]


def test_a_job_without_faults_runs_one_round_and_finishes() -> None:
    cluster = job()
    assert nodes_of_last_round(cluster) == ALL
    assert finish(cluster) == "finished"
    assert cluster.checker.rounds == 1


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_a_failure_of_a_rank_restarts_the_round_on_the_same_nodes(kind: str) -> None:
    cluster = job(faults=[at(5, kind, "n002")])
    cluster.simulation.run(25 * S)
    assert cluster.checker.job_runs
    assert cluster.checker.rounds == 2
    assert nodes_of_last_round(cluster) == ALL
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("kind", ["kill", "power", "isolate", "pause", "exclude"])
def test_a_spare_takes_the_place_of_a_node(kind: str) -> None:
    cluster = job(faults=[at(5, kind, "n002")])
    cluster.simulation.run(25 * S)
    assert cluster.checker.job_runs
    assert nodes_of_last_round(cluster) == ["n000", "n001", "n003", "n004"]


def test_the_job_goes_on_without_its_leader() -> None:
    cluster = job(faults=[at(5, "power", "n000")])
    cluster.simulation.run(40 * S)
    assert cluster.checker.job_runs
    assert cluster.checker.takeovers == 1
    assert nodes_of_last_round(cluster) == ["n001", "n002", "n003", "n004"]
    assert finish(cluster) == "finished"


def test_a_coordinator_that_is_back_in_time_restarts_nobody() -> None:
    cluster = job(Setup(4, standalone=True), faults=[at(5, "coordinator", lasts=2)])
    cluster.simulation.run(25 * S)
    assert cluster.checker.job_runs
    assert cluster.checker.rounds == 1
    assert finish(cluster) == "finished"


def test_a_slow_node_and_a_reset_between_members_change_nothing() -> None:
    cluster = job(faults=[at(5, "slow", "n002", lasts=5), at(6, "reset", "n001", "n002")])
    cluster.simulation.run(25 * S)
    assert cluster.checker.rounds == 1


def test_another_machine_comes_instead_of_one_that_lost_power() -> None:
    cluster = job(Setup(4), faults=[at(5, "power", "n003", lasts=3, to="n077")])
    cluster.simulation.run(30 * S)
    assert cluster.checker.job_runs
    assert sorted(nodes_of_last_round(cluster)) == ["n000", "n001", "n002", "n077"]


@pytest.mark.parametrize("heard", [False, True])
def test_a_committee_leads_on_only_if_it_has_heard_that_it_is_one(heard: bool) -> None:
    """The leader keeps the register alone until a third launcher is back, and is lost then."""
    back = at(6, "kill", "n002", lasts=10)
    cut = at(19 if heard else 16.1, "isolate", "n000", lasts=6)
    cluster = job(Setup(2, 1), faults=[back, cut, at(20, "power", "n000", lasts=3, to="n077")])
    cluster.simulation.run(70 * S)
    assert cluster.checker.job_runs == heard
    lost = "nobody can take over from n000, which is lost"
    assert why_beyond_help(cluster) == ("" if heard else lost)


def test_a_launcher_that_is_told_to_leave_is_replaced() -> None:
    cluster = job(faults=[at(5, "leave", "n001")])
    cluster.simulation.run(25 * S)
    assert cluster.agents["n001"].outcome == "preempted"
    assert "n001" not in nodes_of_last_round(cluster)
    assert finish(cluster) == "finished"


def test_neither_part_of_a_job_cut_in_half_runs_twice() -> None:
    halves = at(5, "partition", "n002", "n003", lasts=40)
    cluster = job(Setup(4), faults=[halves])
    cluster.simulation.run(40 * S)
    assert not cluster.checker.job_runs
    cluster.simulation.run(75 * S)
    assert cluster.checker.job_runs


def test_faults_of_nobody_do_nothing() -> None:
    cluster = job(FOUR, faults=[at(5, "crash", "n099"), at(5, "reset", "n099", "n000")])
    cluster.simulation.run(15 * S)
    assert cluster.checker.rounds == 1
