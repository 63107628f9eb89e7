"""How long a job of many nodes stands still when the node of its leader is lost. Virtual time."""

from __future__ import annotations

import pytest

from simulator.coordination.setup import LEASE_S, Setup
from tests.simulator.coordination.jobs import S, at, finish, job


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("kill", 4.0),  # claim 0.7, stop 2.2
        ("power", LEASE_S + 9.0),  # claim 7; a spare is not there much later than the members
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_all_ranks_run_again_soon(kind: str, seconds: float, seed: int) -> None:
    cluster = job(Setup(4, 2, ordered=True), seed, faults=[at(10, kind, "n000")])
    cluster.simulation.run(round((10 + seconds) * S))
    assert cluster.checker.newest == 1
    assert cluster.checker.job_runs
    assert finish(cluster) == "finished"
