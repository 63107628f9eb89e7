"""How long a job of many nodes stands still when the node of its leader is lost. Virtual time."""

from __future__ import annotations

import pytest

from simulator.coordination.setup import LEASE_S, Setup
from tests.simulator.coordination.jobs import S, at, finish, job, nodes_of_last_round


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("kill", 3.1),  # ranks may ignore SIGTERM for 2.0
        ("power", LEASE_S + 3.5),  # ranks of the leader's node are gone 3.0 after the lease
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_all_ranks_run_again_soon(kind: str, seconds: float, seed: int) -> None:
    cluster = job(Setup(4, 2, ordered=True), seed, faults=[at(10, kind, "n000")])
    cluster.simulation.run(round((10 + seconds) * S))
    assert cluster.checker.newest == 1
    assert cluster.checker.job_runs
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("seed", [7, 10, 12, 27])
def test_of_members_that_claim_at_the_same_moment_one_leads(seed: int) -> None:
    """Their claims take longer than a turn; in each of these seeds two were elected."""
    cluster = job(Setup(3, 2), seed, faults=[at(10, "power", "n000")])
    cluster.simulation.run(9 * S)
    cluster.simulation.slow_network(200_000_000)
    cluster.simulation.run(20 * S)
    assert cluster.checker.takeovers == 1
    assert cluster.checker.job_runs


ELASTIC = Setup(2, 3, elastic=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("setup", "kind", "nodes", "takeovers"),
    [
        (Setup(4, 2), "crash", ("n002",), 0),
        (Setup(4, 2), "kill", ("n002",), 0),
        (Setup(4, 2), "kill", ("n000",), 1),
        (Setup(4, 2), "power", ("n002",), 0),
        (Setup(4, 2), "power", ("n000",), 1),
        (Setup(4, 2), "pause", ("n000",), 1),
        (Setup(4, 2), "leave", ("n000",), 1),
        (Setup(3, 1), "power", ("n000",), 1),
        (Setup(3, 1, standalone=True), "power", ("n001",), 0),
        (ELASTIC, "partition", ("n003", "n004"), 0),
        (ELASTIC, "partition", ("n000", "n001"), 1),
    ],
    ids=str,
)
def test_one_fault_costs_one_round(
    setup: Setup, kind: str, nodes: tuple[str, ...], takeovers: int, seed: int
) -> None:
    cluster = job(setup, seed + 1, faults=[at(10, kind, *nodes, lasts=60)])
    cluster.simulation.run(10 * S)
    before = cluster.checker.rounds
    cluster.simulation.run(50 * S)
    assert cluster.checker.job_runs
    assert cluster.checker.rounds == before + 1
    assert cluster.checker.takeovers == takeovers


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("node", ["n000", "n001", "n002"])
def test_two_nodes_and_a_spare_survive_the_loss_of_any_one(node: str, kind: str) -> None:
    cluster = job(Setup(2, 1), faults=[at(8, kind, node)])
    cluster.simulation.run(30 * S)
    assert cluster.checker.job_runs
    assert node not in nodes_of_last_round(cluster)
    assert finish(cluster) == "finished"


def test_launchers_may_be_lost_one_after_the_other() -> None:
    cluster = job(Setup(1, 4), faults=[at(8 + 15 * n, "power", f"n00{n}") for n in range(3)])
    cluster.simulation.run(60 * S)
    assert cluster.checker.job_runs
    (leader,) = [name for name in ("n003", "n004") if cluster.agents[name].leads]
    cluster.power_off("n004" if leader == "n003" else "n003")
    cluster.simulation.run(90 * S)
    assert nodes_of_last_round(cluster) == [leader]
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("seed", range(3))
def test_a_spare_that_keeps_the_register_is_replaced_without_a_restart(seed: int) -> None:
    faults = [at(8, "power", "n004", lasts=6), at(30, "power", "n003", lasts=6)]
    cluster = job(Setup(3, 2), seed, faults=faults)
    cluster.simulation.run(60 * S)
    assert cluster.checker.rounds == 1
    assert {each.node for each in cluster.checker.ledger.committee} == set(cluster.agents)
    assert finish(cluster) == "finished"
