"""The whole job is started again while launchers of its earlier start live."""

from __future__ import annotations

import pytest

from simulator.coordination.invariants import BegunAnew
from simulator.coordination.setup import GIVE_UP_S, Setup
from tests.simulator.coordination.jobs import S, at, job


@pytest.mark.parametrize("kind", ["kill", "disk"], ids=["one directory", "a directory each"])
@pytest.mark.parametrize("setup", [Setup(3), Setup(3, 1), Setup(5)], ids=str)
def test_the_job_begins_anew_while_a_minority_of_its_earlier_start_lives(
    setup: Setup, kind: str
) -> None:
    """The disk of the first node is what its launcher finds in the directory of the run."""
    lost = setup.names[: len(setup.names) // 2 + 1]
    cluster = job(setup, faults=[at(10, kind, node, lasts=8) for node in lost])
    cluster.simulation.run(20 * S)
    for number in range(setup.nodes - len(lost)):
        cluster.simulation.boot(f"n1{number:02}")
        cluster.launch(f"n1{number:02}")
    with pytest.raises(BegunAnew):
        cluster.simulation.run(20 * S + round(GIVE_UP_S * S / 2))
