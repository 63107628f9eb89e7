"""Cuts that move at the worst moment: each rank has one process, and one world goes on."""

from __future__ import annotations

import pytest

from simulator.coordination.faults import Fault
from simulator.coordination.setup import Setup
from tests.simulator.coordination.jobs import S, at, finish, job, nodes_of_last_round

ELASTIC = Setup(2, 3, elastic=True)
SILENT, RESET = 3, 7  # see `Nemesis._shift`
SEEDS = (0, 2, 3, 4, 5, 6)


def shifted(how: int, seed: int) -> list[str]:
    """Three nodes go on without two; the last that confirms their round joins these two.

    Return who takes part after the network has healed.
    """
    shift = Fault(10 * S, "shift", ("n000", "n001"), 50 * S, choice=how)
    cluster = job(ELASTIC, seed, [shift])
    cluster.simulation.run(100 * S)
    assert cluster.checker.job_runs
    nodes = nodes_of_last_round(cluster)
    assert finish(cluster) == "finished"
    return nodes


@pytest.mark.parametrize("how", [SILENT, RESET])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_changes_sides_when_it_has_confirmed_a_round(how: int, seed: int) -> None:
    assert len(shifted(how, seed)) == 5


@pytest.mark.parametrize("standalone", [False, True])
def test_a_node_that_is_cut_off_has_stopped_before_a_spare_takes_its_place(
    standalone: bool,
) -> None:
    setup = Setup(2, 1, standalone=standalone)
    cluster = job(setup, 1, [at(10, "isolate", "n001", lasts=40)])
    before = cluster.checker.rounds
    cluster.simulation.run(20 * S)
    assert cluster.checker.rounds == before + 1, "within lease and grace"
    assert cluster.checker.job_runs


def test_a_node_that_missed_a_hand_over_has_stopped_before_others_take_its_place() -> None:
    setup = Setup(8, 2, elastic=True)
    hand_over_s = 15.04  # it takes a while, as the next leader is slow
    faults = [at(9.9, "slow", "n001", lasts=6), at(10, "leave", "n000")]
    cluster = job(setup, 2, [*faults, at(hand_over_s, "isolate", "n002", lasts=14)])
    cluster.simulation.run(40 * S)
    assert cluster.checker.job_runs


def test_a_node_that_counted_on_others_has_stopped_before_others_take_its_place() -> None:
    late = at(9.99, "pause", "n003", lasts=0.07)  # so it hears of the reset, and asks, a bit later
    faults = [late, at(10, "kill", "n000"), at(13.065, "isolate", "n003", lasts=14)]
    cluster = job(Setup(3, 4, elastic=True), 1, faults)
    cluster.simulation.run(40 * S)
    assert cluster.checker.job_runs


def test_a_spare_that_comes_later_makes_the_others_replaceable() -> None:
    cluster = job(Setup(2, 0), 1, [at(30, "isolate", "n001", lasts=60)])
    cluster.simulation.run(20 * S)
    cluster.simulation.boot("n009")
    cluster.launch("n009")
    cluster.simulation.run(40 * S)
    assert "n009" in nodes_of_last_round(cluster)
    assert cluster.checker.job_runs


def test_a_newcomer_waits_until_a_node_that_could_not_be_replaced_has_stopped() -> None:
    cluster = job(Setup(2, 0), 1, [at(10, "isolate", "n001", lasts=80)])
    cluster.simulation.run(20 * S)
    cluster.simulation.boot("n009")
    cluster.launch("n009")
    cluster.simulation.run(30 * S)
    assert cluster.checker.rounds == 1
    cluster.simulation.run(45 * S)
    assert "n009" in nodes_of_last_round(cluster)
    assert cluster.checker.job_runs
