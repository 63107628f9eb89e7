"""Nodes of a job lose their power or their cable, or Slurm takes them for lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.programs import TRAINS, outcomes, running, working

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.slurm.cluster import Cluster, Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
slurm = pytest.mark.slurm
THREE = ("--nodes=3",)


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_node_without_power(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py", options=THREE, NODES="2")
    running(job, 4)
    cluster.power_off("n2")
    running(job, 4, 1)
    assert "rank 3/4 round 1 node 1 task 2 again 0" in job.text
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "first cause in round 0: node n2" in job.text
    assert outcomes(job) == {"n1": "finished", "n2": "", "n3": "finished"}


@slurm
def test_too_few_nodes_are_left_without_one(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """The job goes back to the queue, and gets another node."""
    job = submit("train.sbatch", "--rdzv-conf", "join_timeout=3", "train.py")
    running(job, 4)
    cluster.power_off("n2")
    running(job, 4, again=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "too_few_nodes (exit code 19): " in job.text
    assert job.shown()["NodeList"] == "n[1,3]"


@slurm
def test_the_only_node_is_lost_and_comes_back(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """With its batch script: Slurm itself queues the job again."""
    options = ("--nodes=1", "--nodelist=n2", "--no-kill=off")
    job = submit("train.sbatch", "train.py", options=options)
    running(job, 2)
    cluster.power_off("n2")
    cluster.power_on("n2")
    running(job, 2, again=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text


@slurm
def test_an_administrator_takes_a_node_down(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py", options=THREE, NODES="2")
    running(job, 4)
    cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    running(job, 4, 1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert {outcomes(job)[node] for node in ("n1", "n3")} == {"finished"}


@slurm
def test_a_node_gets_no_more_jobs(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "round 1" not in job.text


@slurm
@pytest.mark.parametrize("cluster", [{"SlurmdTimeout": 120}], ids=["patient"], indirect=True)
def test_a_cable_is_out_for_a_moment(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    cluster.cut("n2")
    cluster.mend("n2")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "round 1" not in job.text
    assert outcomes(job) == {"n1": "finished", "n2": "finished"}


@slurm
@pytest.mark.parametrize(
    "cluster", [{"SlurmdTimeout": 120}, {}], ids=["patient", "hasty"], indirect=True
)
def test_a_cable_is_out_for_long(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """A spare takes the place; Slurm may take the node for lost meanwhile, or not."""
    job = submit("train.sbatch", "train.py", options=THREE, NODES="2")
    running(job, 4)
    cluster.cut("n2")
    running(job, 4, 1)
    cluster.mend("n2")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert {outcomes(job)[node] for node in ("n1", "n3")} == {"finished"}


@slurm
def test_a_job_is_suspended_and_resumed(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """For longer than nodes may be silent."""
    job = submit("train.sbatch", "--rdzv-conf", "lease=1", "train.py")
    running(job, 4)
    cluster.run("scontrol", "suspend", job.id)
    cluster.run("srun", "--begin=now+4", "true")
    cluster.run("scontrol", "resume", job.id)
    cluster.run("srun", "--begin=now+4", "true")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "round 1" not in job.text


@slurm
@pytest.mark.torch
@pytest.mark.parametrize("script", [TRAINS], ids=["ddp-and-loader-workers"], indirect=True)
def test_a_job_of_ddp_loses_a_node(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py", options=THREE, NODES="2")
    working(job, 4)
    cluster.power_off("n2")
    working(job, 4, 1)
    (script / "finish").touch()
    assert job.end() == 0, job.text


@slurm
def test_the_controller_of_slurm_is_away_for_a_while(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    cluster.kill_slurmctld(job.id)
    (script / "crash-3").touch()
    running(job, 4, 1)
    cluster.start_slurmctld()
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert outcomes(job) == {"n1": "finished", "n2": "finished"}
