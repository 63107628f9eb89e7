"""Slurm takes nodes away, or signals all processes of a step: all ranks save the same iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.programs import SAVES, TRAINS, outcomes, running, saved, working

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.slurm.cluster import Cluster, Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

slurm, torch = pytest.mark.slurm, pytest.mark.torch
both = pytest.mark.parametrize(
    "script",
    [
        pytest.param(SAVES, id="ranks"),
        pytest.param(TRAINS, id="ddp-and-loader-workers", marks=torch),
    ],
    indirect=True,
)


def all_saved(job: Job, ranks: int) -> None:
    """Check that all ranks have saved the same iteration, once."""
    told = saved(job)
    assert sorted(told) == [str(rank) for rank in range(ranks)], job.text
    assert len(set.union(*told.values())) == 1, job.text


def take_all(cluster: Cluster) -> str:
    """Submit a job that needs all nodes, and may take them away; return its id."""
    urgent = ("--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null")
    return cluster.run("sbatch", "--parsable", *urgent, "--wrap", "true").strip()


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({"GraceTime": 0}, id="grace0", marks=slurm),
        pytest.param({"GraceTime": 20}, id="grace20"),
    ],
    indirect=True,
)
@pytest.mark.parametrize("script", [SAVES], ids=["ranks"], indirect=True)
def test_a_job_is_preempted_and_goes_on_later(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py", options=("--partition=requeue",))
    working(job, 4)
    take_all(cluster)
    working(job, 4, start=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    all_saved(job, 4)
    assert outcomes(job) == {"n1": "finished", "n2": "finished"}


@slurm
@both
def test_a_job_is_preempted_for_good(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py", options=("--partition=cancel",))
    working(job, 4)
    take_all(cluster)
    job.end()
    all_saved(job, 4)
    assert job.shown()["JobState"] == "PREEMPTED"
    assert outcomes(job) == {"n1": "preempted", "n2": "preempted"}


@slurm
@pytest.mark.parametrize("cluster", [{"GraceTime": 20}], ids=["grace20"], indirect=True)
@pytest.mark.parametrize("script", [SAVES], ids=["ranks"], indirect=True)
def test_a_job_that_has_saved_in_its_grace_time_goes_back_to_the_queue(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """Slurm would have cancelled it only when that time was over."""
    job = submit("train.sbatch", "train.py", options=("--partition=cancel",))
    working(job, 4)
    take_all(cluster)
    working(job, 4, start=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    all_saved(job, 4)


@both
@slurm
def test_a_job_is_cancelled(submit: Callable[..., Job], cluster: Cluster, script: Path) -> None:
    job = submit("train.sbatch", "train.py")
    working(job, 4)
    cluster.run("scancel", job.id)
    job.end()
    all_saved(job, 4)
    assert outcomes(job) == {"n1": "preempted", "n2": "preempted"}


@slurm
@torch
@pytest.mark.parametrize("script", [TRAINS], ids=["ddp-and-loader-workers"], indirect=True)
def test_a_job_of_ddp_goes_back_to_the_queue(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    working(job, 4)
    cluster.run("scancel", "--signal=TERM", job.id)
    working(job, 4, start=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    all_saved(job, 4)


@slurm
@pytest.mark.parametrize("script", [SAVES], ids=["ranks"], indirect=True)
def test_a_job_is_put_back_into_the_queue_by_hand(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    working(job, 4)
    cluster.run("scontrol", "requeue", job.id)
    working(job, 4, start=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    all_saved(job, 4)


@slurm
def test_a_signal_that_is_the_programs_ends_nothing(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    text = (script / "train.py").read_text()
    handler = (
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True))\n"
    )
    (script / "train.py").write_text(handler + text)
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    cluster.run("scancel", "--signal=USR1", job.id)
    job.wait_for(r"(?s)(^heard$.*){4}")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "round 1" not in job.text
