"""The time limit of a job comes near: it saves, and goes back to the queue where that helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.programs import SAVES, running, saved, working

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.slurm.cluster import Job

# Slurm looks at time limits every half minute.
pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(400)]
LONG_S = 200


@pytest.mark.parametrize("how", ["TERM@50", "B:TERM@50"])
@pytest.mark.parametrize("script", [SAVES], ids=["saves"], indirect=True)
def test_a_job_saves_before_its_time_is_over(
    submit: Callable[..., Job], script: Path, how: str
) -> None:
    options = ("--time=1", f"--signal={how}", "--nodes=1")
    job = submit("train.sbatch", "train.py", options=options)
    working(job, 2)
    job.wait_for(r"^rank 1 works in start 1 ", LONG_S)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    told = saved(job)
    assert sorted(told) == ["0", "1"]
    assert told["0"] == told["1"]


def test_a_time_limit_that_is_too_short_ends_the_job(
    submit: Callable[..., Job], script: Path
) -> None:
    """Each start is told to stop at once: the job comes no further."""
    options = ("--time=2", "--nodes=1")  # the example's signal comes five minutes before the end
    job = submit("train.sbatch", "train.py", options=options)
    running(job, 2)
    job.wait_for(r"not queued again", LONG_S)
    assert job.end() == 75, job.text
    assert job.shown()["JobState"] == "FAILED"


@pytest.mark.parametrize("script", [SAVES], ids=["saves"], indirect=True)
def test_a_job_that_runs_into_its_time_limit_names_the_remedy(
    submit: Callable[..., Job], script: Path
) -> None:
    options = ("--time=1", "--signal=CONT@1", "--nodes=1")
    job = submit("train.sbatch", "train.py", options=options)
    working(job, 2)
    job.wait_for(r"not queued again.*#SBATCH --signal=TERM@", LONG_S)
    assert job.end() == 75, job.text
    assert job.shown()["JobState"] == "TIMEOUT"
