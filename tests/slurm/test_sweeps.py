"""Many jobs at once: sweeps, and strangers that share nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.slurm.cluster import Cluster, Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ON = ("--nodelist=n1,n2",)


def test_tasks_of_a_sweep_share_their_nodes(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """Each trains by itself; one that is preempted goes back alone."""
    options = ("--array=0-1", *ON)
    job = submit("train.sbatch", "train.py", options=options, RANKS_PER_NODE="1")
    job.wait_for(r"(?s)(^rank 0/2 round 0 .*){2}")
    job.wait_for(r"(?s)(^rank 1/2 round 0 .*){2}")
    cluster.run("scancel", "--signal=TERM", f"{job.id}_0")
    job.wait_for(r"^rank 0/2 round 0 .* again 1$")
    job.wait_for(r"^rank 1/2 round 0 .* again 1$")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert len(re.findall(r"^rank \d/2 round \d .*$", job.text, re.MULTILINE)) == 6
    assert len(list(script.glob("undaunted-runs/slurm-*"))) == 2


@pytest.mark.slurm
def test_two_jobs_share_their_nodes(submit: Callable[..., Job], script: Path) -> None:
    first, second = (
        submit("train.sbatch", "train.py", options=ON, RANKS_PER_NODE="1") for _ in range(2)
    )
    for job in (first, second):
        job.wait_for(r"^rank 1/2 round 0 ")
    (script / "finish").touch()
    assert first.end() == second.end() == 0, first.text + second.text


@pytest.mark.slurm
def test_a_finished_task_of_a_sweep_does_not_run_again(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """The last task has the array's id: it is preempted when the first one is done."""
    text = (script / "train.py").read_text()
    done = "import os, sys\nif os.environ['SLURM_ARRAY_TASK_ID'] == '0': sys.exit()\n"
    (script / "train.py").write_text(done + text)
    options = ("--array=0-1", "--nodes=1")
    job = submit("train.sbatch", "train.py", options=options)
    job.wait_for(r"finished \(exit code 0\)")
    job.wait_for(r"^rank 1/2 round 0 .* again 0$")
    cluster.run("scancel", "--signal=TERM", f"{job.id}_1")
    job.wait_for(r"^rank 1/2 round 0 .* again 1$")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert job.text.count("finished (exit code 0)") == 2
