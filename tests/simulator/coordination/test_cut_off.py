"""A node is cut off from a leader that trains nothing itself, and nobody can vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from simulator.coordination import cluster
from simulator.coordination.setup import Setup
from simulator.run import InvariantError
from tests.simulator.coordination.jobs import S, at, finish, job, nodes_of_last_round
from undaunted.coordinator.core import preparation

if TYPE_CHECKING:
    from simulator.coordination.cluster import Cluster


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
    monkeypatch.setattr(preparation, "STOPPED_AFTER_S", 0.0)
    cluster = cut_off(monkeypatch)
    with pytest.raises(InvariantError, match="never two worlds"):
        cluster.simulation.run(95 * S)
