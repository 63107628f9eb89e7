"""A node is cut off from a leader that trains nothing itself, and nobody can vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from simulator.coordination import cluster
from simulator.coordination.setup import LEASE_S, Setup
from simulator.run import InvariantError
from tests.simulator.coordination.bugs import silent_nodes_count_as_stopped
from tests.simulator.coordination.jobs import S, at, finish, job, nodes_of_last_round
from undaunted.coordinator.lead import absence
from undaunted.coordinator.lead.sessions import Sessions
from undaunted.coordinator.lead.times import Durations

if TYPE_CHECKING:
    from simulator.coordination.cluster import Cluster

STOPPED_S = Durations(LEASE_S).stopped_s


def cut_off(patch: pytest.MonkeyPatch) -> Cluster:
    """The ranks of the node that is cut off ignore SIGTERM."""
    patch.setattr(cluster, "_DEAF", 1.0)
    return job(Setup(1, 1, standalone=True), faults=[at(10, "isolate", "n000", lasts=60)])


def test_its_ranks_are_gone_before_others_take_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cut_off(monkeypatch)
    cluster.simulation.run(95 * S)
    assert nodes_of_last_round(cluster) == ["n001"]
    assert cluster.checker.job_runs
    assert finish(cluster) == "finished"


def test_the_grace_of_a_node_that_is_cut_off_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    silent_nodes_count_as_stopped(monkeypatch)
    cluster = cut_off(monkeypatch)
    with pytest.raises(InvariantError, match="never two worlds"):
        cluster.simulation.run(95 * S)


def leader_cut_off(patch: pytest.MonkeyPatch, seed: int) -> Cluster:
    """The ranks of all nodes ignore SIGTERM."""
    patch.setattr(cluster, "_DEAF", 1.0)
    return job(Setup(3, 2), seed, faults=[at(10 + seed / 7, "isolate", "n000", lasts=60)])


def all_go_on(patch: pytest.MonkeyPatch, seeds: int) -> None:
    for seed in range(seeds):
        leader_cut_off(patch, seed).simulation.run(25 * S)


@pytest.mark.parametrize("seed", range(7))
def test_ranks_of_a_leader_that_is_cut_off_are_gone_before_others_take_their_place(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    cluster = leader_cut_off(monkeypatch, seed)
    cluster.simulation.run(25 * S)
    assert "n000" not in nodes_of_last_round(cluster)
    assert cluster.checker.job_runs


def test_a_leader_that_is_cut_off_gets_the_time_to_stop_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absence.Absence, "stop_s", lambda *_: (0.0, STOPPED_S))
    with pytest.raises(InvariantError, match="each rank once"):
        all_go_on(monkeypatch, 20)


def half_cut_off(patch: pytest.MonkeyPatch, seed: int) -> Cluster:
    """The leader and another node are cut off, and that one from the leader as well, later.

    The ranks of all nodes ignore SIGTERM.
    """
    patch.setattr(cluster, "_DEAF", 1.0)
    alone = at(14.2 + seed / 7, "isolate", "n001", lasts=60)
    both = at(10, "partition", "n000", "n001", lasts=60)
    return job(Setup(3, 2), seed, faults=[both, alone])


@pytest.mark.parametrize("seed", range(7))
def test_a_node_that_follows_a_leader_without_a_majority_is_not_waited_for_longer(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """It stops when a majority has lost its leader, whether or not it hears of that."""
    cluster = half_cut_off(monkeypatch, seed)
    cluster.simulation.run(round((10 + LEASE_S + 3.5) * S))
    assert cluster.checker.newest == 1
    assert cluster.checker.job_runs
    assert set(nodes_of_last_round(cluster)) == {"n002", "n003", "n004"}


def test_nodes_count_on_a_leader_no_longer_than_its_majority_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sessions, "majority_s", lambda *_: None)
    with pytest.raises(InvariantError, match="each rank once"):
        half_cut_off(monkeypatch, 1).simulation.run(25 * S)
