"""The machine of the endpoint comes back with an empty disk while others lead the job."""

from __future__ import annotations

import pytest

from simulator.coordination.setup import Setup
from tests.simulator.coordination.jobs import S, at, finish, job


@pytest.mark.parametrize(
    "setup", [Setup(1, 3, elastic=True), Setup(3, 1), Setup(3, 1, elastic=True)]
)
def test_its_launcher_is_part_of_their_job(setup: Setup) -> None:
    """It may lead it, if somebody who knows the job has come to it first."""
    cluster = job(setup, faults=[at(10, "disk", "n000", lasts=20)])
    cluster.simulation.run(60 * S)
    assert len({agent.follows for agent in cluster.agents.values()}) == 1
    assert cluster.checker.job_runs
    assert finish(cluster) == "finished"
