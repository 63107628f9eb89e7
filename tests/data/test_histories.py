"""Some of the histories of `python -m tests.data.histories`, as real jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.data.histories import PROGRAM, History, Start, check, compare, noted, undisturbed
from tests.e2e.launcher import nodes_of_a_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.usefixtures("no_compiler")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_a_job_learns_the_same_whatever_happens(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed)


@pytest.mark.slow
def test_a_node_that_an_elastic_job_loses_changes_no_step(tmp_path: Path) -> None:
    """Two nodes with two ranks each, until rank 3 ends the launcher of its node."""
    start = Start(ranks=4, workers=1, fault="agent", rank=3, step=9, until=24)
    history = History([70, 30, 50], 2, 5, "short", True, False, 4, 24, [start])
    job = tmp_path / "job"
    job.mkdir()
    options = ("--nnodes", "1:2", "--elastic", "--nproc-per-node", "2", "--max-restarts", "2")
    program = (json.dumps(history._asdict()), "0")
    with nodes_of_a_job(job, PROGRAM.read_text(), *options, args=program) as begin:
        one = begin("one", "is_host=1,last_call_timeout=60")
        two = begin("two", "is_host=0")
        assert one.finish(120) == 0, one.text
        assert two.finish() == 1
    found = noted(job)
    assert found["rounds"] == {(0, 0), (0, 1)}
    compare(found, undisturbed(tmp_path / "alone", history), history)
