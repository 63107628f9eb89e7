"""Batch scripts as NeMo-Run writes them, on a Slurm cluster of two nodes."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integrations.commands import environment
from tests.ports import free_ports
from tests.slurm.conftest import cluster  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Prints the script that NeMo-Run would submit.
GENERATE = """
    import pathlib, sys
    import nemo_run as run
    from undaunted.integrations import nemo_run as ours

    launcher, port, kind = sys.argv[1:]
    executor = run.SlurmExecutor(
        account="research",
        partition="debug",
        nodes=2,
        ntasks_per_node=1,
        mem=None,
        retries=2,
        tunnel=run.LocalTunnel(job_dir=str(pathlib.Path("jobs").resolve())),
        packager=run.Packager(),
        launcher=run.FaultTolerance(rdzv_port=int(port)) if launcher == "theirs" else None,
    )
    plugins = []
    if launcher == "ours":
        plugins = [
            ours.FaultTolerancePlugin(num_in_job_restarts=1),
            ours.PreemptionPlugin(preempt_time=45),
        ]
    here = pathlib.Path.cwd()
    with run.Experiment("test", executor=executor) as experiment:
        script = run.Script(str(here / "train.py"), entrypoint="python", args=[str(here), kind])
        experiment.add(script, name="train", plugins=plugins)
        job = experiment.jobs[0]
        if launcher == "ours":
            job.executor.launcher.rdzv_port = int(port)
        experiment.dryrun(log=False, delete_exp_dir=False)
    (script,) = pathlib.Path("home").rglob("*_sbatch.sh")
    script.rename("job.sbatch")
"""

TRAIN = """
    import os, pathlib, signal, subprocess, sys, threading
    import undaunted

    folder, kind = sys.argv[1:3]
    rank, again = os.environ["RANK"], os.environ.get("SLURM_RESTART_COUNT", "0")
    round = os.environ["TORCHELASTIC_RESTART_COUNT"]
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    with open(f"{folder}/starts", "a") as starts:
        starts.write(f"start {again} round {round} rank {rank} of {os.environ['WORLD_SIZE']}\\n")
    if kind == "fails" or (kind == "fails once" and again == "0"):
        raise ValueError("bad batch")
    for step in range(2000 if kind == "preempted" and again == "0" else 40):
        undaunted.step(step)
        if kind == "preempted" and again == "0" and rank == "0" and step == 10:
            job = os.environ["SLURM_JOB_ID"]
            subprocess.run(["scancel", "--signal=TERM", job], check=True)
        if kind == "killed" and round == "0" and rank == "1" and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        if told:
            sys.exit("saved")
        threading.Event().wait(0.02)
"""


class Run:
    """A job that has ended: its batch script, and what it has left behind."""

    def __init__(self, cluster: Cluster, folder: Path, launcher: str, kind: str) -> None:  # noqa: F811
        (folder / "train.py").write_text(textwrap.dedent(TRAIN))
        env = {**environment(folder / "bin"), "NEMORUN_HOME": str(folder / "home")}
        command = [sys.executable, "-c", textwrap.dedent(GENERATE)]
        generated = subprocess.run(
            [*command, launcher, str(free_ports(2)), kind],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        assert generated.returncode == 0, generated.stdout
        self.script = (folder / "job.sbatch").read_text()
        (code,) = set(re.findall(r"--chdir (\S+)", self.script))
        Path(code).mkdir(parents=True)  # NeMo-Run copies the program there
        self.folder = Path(code).parent
        job = cluster.submit(folder, "--requeue", folder / "job.sbatch", PATH=env["PATH"])
        try:
            self.code = job.end()
        finally:
            job.close()
        logs = [path.read_text(errors="replace") for path in self.folder.glob("log-*")]
        self.text = "\n".join([job.output.read_text(), *logs])
        self.starts = (folder / "starts").read_text().splitlines()

    @property
    def results(self) -> str:
        """How each start of the job ended, as the script notes it."""
        lines = (self.folder / "train_job_results").read_text().splitlines()
        return "".join(line.split()[-1] for line in lines)

    @property
    def is_finished(self) -> bool:
        return (self.folder / "train_finished_flag").exists()


@pytest.mark.parametrize("launcher", ["ours", "theirs"])
def test_a_job_that_failed_is_started_again_until_it_is_finished(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
    launcher: str,
) -> None:
    done = Run(cluster, tmp_path, launcher, "fails once")
    assert "srun " in done.script
    assert "ft_launcher --" in done.script
    assert done.code == 0, done.text
    assert done.results == "FS", done.text
    assert done.is_finished
    assert {f"start 1 round 0 rank {rank} of 2" for rank in range(2)} <= set(done.starts)


def test_a_job_that_fails_again_and_again_reaches_its_limit(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    done = Run(cluster, tmp_path, "ours", "fails")
    assert done.results == "FF", done.text
    assert not done.is_finished
    rounds = {line.partition(" rank ")[0] for line in done.starts}
    assert rounds == {f"start {again} round {number}" for again in (0, 1) for number in (0, 1)}


def test_a_rank_that_is_killed_costs_no_start_of_the_job(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    done = Run(cluster, tmp_path, "ours", "killed")
    assert done.results == "S", done.text
    assert done.is_finished
    assert "start 0 round 1 rank 1 of 2" in done.starts


def test_a_job_that_was_preempted_goes_on_and_has_not_failed(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    done = Run(cluster, tmp_path, "ours", "preempted")
    assert "--signal=TERM@45" in done.script
    assert done.results == "SS", done.text
    assert done.is_finished
    assert "start 1 round 0 rank 0 of 2" in done.starts
