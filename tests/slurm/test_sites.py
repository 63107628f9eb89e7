"""What a site has set, and launchers that were started in another way than was meant."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import wait_until_gone
from tests.slurm.cluster import memory_cgroup
from tests.slurm.programs import SAVES, launchers, outcomes, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.slurm.cluster import Cluster, Job

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
WAIT_S = 1

# Says so when it has run for longer than Slurm would wait.
LASTS = f"""
    import os, pathlib, sys, time, threading
    about = "{{RANK}}/{{WORLD_SIZE}} round {{TORCHELASTIC_RESTART_COUNT}}".format(**os.environ)
    began = time.monotonic()
    print(f"rank {{about}} starts", flush=True)
    while time.monotonic() < began + {WAIT_S + 4}:
        threading.Event().wait(0.02)
    print(f"rank {{about}} lasts", flush=True)
    while not pathlib.Path("finish").exists():
        threading.Event().wait(0.02)
"""


@pytest.mark.parametrize(
    "cluster",
    [{"WaitTime": WAIT_S}, {"KillOnBadExit": 1}],
    ids=["WaitTime", "KillOnBadExit"],
    indirect=True,
)
@pytest.mark.parametrize("script", [LASTS], ids=["lasts"], indirect=True)
def test_a_site_ends_jobs_that_have_lost_a_task(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "--elastic", "train.py", NODES="1", RANKS_PER_NODE="1")
    job.wait_for(r"^rank 1/2 round 0 starts")
    pids = launchers("n2", script)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert pids
    assert not wait_until_gone(pids, 20)
    job.wait_for(r"^rank 0/1 round 1 lasts")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert outcomes(job) == {"n1": "finished", "n2": ""}


def test_a_user_ends_jobs_that_have_lost_a_task(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    given = {"SLURM_KILL_BAD_EXIT": "1", "SLURM_WAIT": "1"}
    job = submit("train.sbatch", "--elastic", "train.py", NODES="1", **given)
    running(job, 4)
    for pid in launchers("n2", script):
        os.kill(pid, signal.SIGKILL)
    running(job, 2, 1)
    (script / "finish").touch()
    assert job.end() == 0, job.text


ENDS = {"WaitTime": 30, "KillOnBadExit": 1, "KillWait": 20}


@pytest.mark.parametrize("cluster", [ENDS], ids=["ends"], indirect=True)
def test_the_doctor_looks_at_what_a_site_has_set(cluster: Cluster) -> None:
    told = cluster.run("srun", "--nodes=1", "undaunted", "doctor")
    assert "KillOnBadExit is 1" in told
    assert "WaitTime is 30" in told
    assert "KillWait is 20" in told


MEMORY = {"SelectTypeParameters": "CR_Core_Memory", "DefMemPerCPU": 100}


@pytest.mark.parametrize("cluster", [MEMORY], ids=["DefMemPerCPU"], indirect=True)
def test_memory_is_shared_out_and_a_job_is_looked_at(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    beside = ("srun", "--overlap", f"--jobid={job.id}", "--nodes=1", "--ntasks=1")
    run = f"undaunted-runs/slurm-{job.id}"
    told = cluster.run(*beside, "undaunted", "report", run, cwd=script)
    assert "n1" in told
    status = cluster.run(*beside, "undaunted", "ctl", run, "status", cwd=script)
    assert "rank" in status
    (script / "finish").touch()
    assert job.end() == 0, job.text


CORES = os.cpu_count() or 1
BINDS = {"TaskPlugin": "task/affinity", "CPUs": CORES}

# Says how many CPUs it may use.
CPUS = """
    import os
    about = "rank {RANK} may use ".format(**os.environ) + str(len(os.sched_getaffinity(0)))
    os.write(1, (about + " CPUs\\n").encode())
"""


@pytest.mark.parametrize("cluster", [BINDS], ids=["affinity"], indirect=True)
@pytest.mark.parametrize("script", [CPUS], ids=["cpus"], indirect=True)
@pytest.mark.skipif(CORES < 2, reason="this machine has one CPU only")
def test_ranks_have_all_cpus_of_their_job(submit: Callable[..., Job], script: Path) -> None:
    job = submit("train.sbatch", "train.py", options=("--exclusive",))
    assert job.end() == 0, job.text
    told = re.findall(r"^rank (\d) may use (\d+) CPUs$", job.text, re.MULTILINE)
    assert sorted(rank for rank, _ in told) == list("0123")
    assert {int(cpus) for _, cpus in told} == {CORES}
    assert "share one CPU" not in job.text


@pytest.mark.parametrize("cluster", [BINDS], ids=["affinity"], indirect=True)
def test_one_cpu_for_all_ranks_is_told(submit: Callable[..., Job], script: Path) -> None:
    (script / "finish").touch()
    job = submit("train.sbatch", "train.py")
    assert job.end() == 0, job.text
    assert "this launcher and its 2 ranks share one CPU" in job.text


LIMITS = {
    "SelectTypeParameters": "CR_Core_Memory",
    "TaskPlugin": "task/cgroup",
    "ConstrainRAMSpace": "yes",
    "ConstrainSwapSpace": "yes",
}

# The last rank takes more memory than there is, once.
EATS = """
    import os, pathlib
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        bytearray(2**30)
    about = "rank {RANK}/{WORLD_SIZE} round {TORCHELASTIC_RESTART_COUNT}".format(**os.environ)
    os.write(1, (about + "\\n").encode())
"""


@pytest.mark.skipif(
    memory_cgroup() is None,
    reason="this machine has no cgroup of version 1 for memory that may be changed",
)
@pytest.mark.parametrize("cluster", [LIMITS], ids=["cgroup"], indirect=True)
@pytest.mark.parametrize("script", [EATS], ids=["eats"], indirect=True)
def test_a_rank_that_runs_out_of_memory_costs_a_round_only(
    submit: Callable[..., Job], script: Path
) -> None:
    """For srun the step has failed, whatever comes of it."""
    job = submit("train.sbatch", "train.py", options=("--nodes=1", "--mem=400"))
    assert job.end() == 0, job.text
    assert "rank 1/2 round 1" in job.text
    assert "oom" in job.text.lower()
    assert job.shown()["JobState"] == "COMPLETED"
    assert outcomes(job) == {"n1": "finished"}


def test_several_launchers_of_the_whole_job_are_told(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    (script / "finish").touch()
    launcher = "undaunted run --nproc-per-node 1 train.py"
    words = ("srun", "--nodes=1", "--ntasks=2", *launcher.split())
    assert "srun starts 2 launchers" in cluster.run(*words, cwd=script)


@pytest.mark.parametrize("script", [SAVES], ids=["saves"], indirect=True)
def test_a_launcher_without_srun_is_told(cluster: Cluster, script: Path) -> None:
    (script / "finish").touch()
    launcher = "undaunted run --nproc-per-node 1 train.py"
    told = cluster.run("salloc", "--nodes=2", *launcher.split(), cwd=script)
    assert "srun did not start this launcher" in told


def test_launchers_are_started_by_hand(cluster: Cluster, script: Path) -> None:
    """As `ft_launcher` with the options that NVRx has, in a script of one's own."""
    (script / "finish").touch()
    options = "--nnodes 2 --nproc-per-node 1 --rdzv-endpoint n1:29400 --rdzv-id job"
    theirs = "--ft-rank-heartbeat-timeout 60 --ft-initial-rank-heartbeat-timeout 60"
    launcher = f"ft_launcher {options} {theirs} train.py"
    words = ("srun", "--nodes=2", "--ntasks-per-node=1", *launcher.split())
    told = cluster.run(*words, cwd=script)
    assert re.search(r"^rank 1/2 round 0 node 1 task 1 ", told, re.MULTILINE)


def test_a_job_of_different_nodes_is_started_by_hand(cluster: Cluster, script: Path) -> None:
    """`undaunted srun` says how, before anything is started."""
    (script / "finish").touch()
    parts = ("salloc", "--nodelist=n1", "--cpus-per-task=2", ":", "--nodelist=n2")
    with pytest.raises(AssertionError, match="heterogeneous"):
        cluster.run(*parts, "undaunted", "srun", "train.py", cwd=script)
    options = "--nnodes 2 --nproc-per-node 1 --rdzv-endpoint n1:29400"
    srun = f"srun --het-group=0,1 undaunted run {options} train.py"
    told = cluster.run(*parts, *srun.split(), cwd=script)
    assert re.search(r"^rank 1/2 round 0 ", told, re.MULTILINE)


# Killed while it saves; its own srun tells no outcome.
KILLED = """#!/bin/bash
srun --ntasks-per-node=1 undaunted run --nnodes 2 --nproc-per-node 1 --rdzv-endpoint n1:29400 \\
    --rdzv-id job --run-dir run train.py
undaunted report --outcome run
echo "outcome $?"
"""
HANGS = SAVES.replace("def save(iteration):\n", "def save(iteration):\n        signal.pause()\n")


@pytest.mark.parametrize("cluster", [{"KillWait": 3}], ids=["KillWait"], indirect=True)
@pytest.mark.parametrize("script", [f"    import signal{HANGS}"], ids=["hangs"], indirect=True)
def test_launchers_that_slurm_has_killed_do_not_run(cluster: Cluster, script: Path) -> None:
    """The batch script of the same job is told so, though most of them were on other nodes."""
    (script / "job.sh").write_text(KILLED)
    job = cluster.submit(script, "--nodes=2", "job.sh")
    try:
        for rank in range(2):
            job.wait_for(rf"^rank {rank} works in start 0 round 0$")
        cluster.run("scancel", f"{job.id}.0")
        assert job.end() == 0
    finally:
        job.close()
    assert "all of them were killed\noutcome 1\n" in job.text
