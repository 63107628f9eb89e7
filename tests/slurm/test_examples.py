"""The files in examples/deploy/slurm, as they are, on a cluster of three nodes."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import wait_until_gone
from tests.slurm.programs import launchers, outcomes, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.slurm.cluster import Cluster, Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
slurm = pytest.mark.slurm

# In its first start rank 0 asks for a stop, because of the last rank if ranks can be the reason.
ASKS = """
    import os, sys, threading
    from undaunted.training import Session, StopReason
    e = os.environ
    again = "SLURM_RESTART_COUNT" in e
    about = "rank {RANK} on {SLURMD_NODENAME} " + ("again" if again else "first")
    os.write(1, (about.format(**e) + "\\n").encode())
    reason = StopReason[e["REASON"]]
    of_a_rank = reason in {StopReason.SUSPECT, StopReason.STRAGGLER}
    with Session() as session:
        for iteration in range(3 if again else 10**9):
            with session.step(iteration):
                threading.Event().wait(0.02)
            if iteration == 1 and e["RANK"] == "0" and not again:
                last = int(e["WORLD_SIZE"]) - 1
                session.request_stop(reason, rank=last if of_a_rank else None)
            if session.should_stop(iteration):
                break
    sys.exit(session.exit_code)
"""


@pytest.fixture
def asks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(ASKS))


def ranks(job: Job, start: str) -> set[str]:
    """Which ranks have been on which nodes in the ``first`` start, or when it began ``again``."""
    return set(re.findall(rf"^rank (\d on \w+) {start}$", job.text, re.MULTILINE))


def test_a_crash_is_survived_and_ranks_follow_the_tasks(
    submit: Callable[..., Job], script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    (script / "crash-3").touch()
    running(job, 4, 1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "rank 3 (node n2" in job.text
    assert "rank 0/4 round 1 node 0 task 0 again 0" in job.text
    assert "rank 3/4 round 1 node 1 task 1 again 0" in job.text
    assert outcomes(job) == {"n1": "finished", "n2": "finished"}


@pytest.mark.slow
def test_a_node_is_lost_with_its_slurmd(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "--elastic", "train.py", NODES="1")
    running(job, 4)
    cluster.kill_slurmd("n2")
    job.wait_for("Node failure on n2")
    assert "round 1" not in job.text  # the launcher lives, and nothing is wrong with its ranks
    pids = launchers("n2", script)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert pids
    assert not wait_until_gone(pids, 20)
    running(job, 2, 1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "first cause in round 0: node n2" in job.text
    assert outcomes(job) == {"n1": "finished", "n2": ""}


def test_a_job_that_is_cancelled_may_save(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    cluster.run("scancel", job.id)
    assert job.end() != 0
    job.wait_for("preempted: the launcher on node n. received SIGTERM")
    assert outcomes(job) == {"n1": "preempted", "n2": "preempted"}


@pytest.mark.parametrize(
    "only",
    [
        "--signal=TERM",
        pytest.param("--batch --signal=TERM", marks=slurm),
        pytest.param("--batch --signal=INT", marks=slurm),
    ],
)
def test_a_job_that_was_preempted_goes_back_to_the_queue(
    submit: Callable[..., Job], cluster: Cluster, script: Path, only: str
) -> None:
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    cluster.run("scancel", *only.split(), job.id)
    running(job, 4, again=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "preempted (exit code 75)" in job.text
    assert outcomes(job) == {"n1": "finished", "n2": "finished"}


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("SUSPECT", "[undaunted] suspect (exit code 16): rank 1 (node n2) "),
        pytest.param(
            "STRAGGLER", "[undaunted] straggler (exit code 18): rank 1 (node n2) ", marks=slurm
        ),
    ],
)
def test_a_job_goes_on_without_the_node_that_is_to_blame(
    submit: Callable[..., Job], asks: None, reason: str, line: str
) -> None:
    job = submit("train.sbatch", "train.py", REASON=reason, RANKS_PER_NODE="1")
    assert job.end() == 0, job.text
    assert f"\n{line}" in job.text
    assert ranks(job, "first") == {"0 on n1", "1 on n2"}
    assert ranks(job, "again") == {"0 on n1", "1 on n3"}


@slurm
def test_nodes_that_were_left_out_before_stay_so(submit: Callable[..., Job], asks: None) -> None:
    options = ("--nodes=1", "--exclude=n1")
    job = submit("train.sbatch", "train.py", options=options, REASON="SUSPECT", RANKS_PER_NODE="1")
    assert job.end() == 0, job.text
    assert ranks(job, "again") == {"0 on n3"}
    assert job.shown()["ExcNodeList"] == "n1,n2"


@slurm
def test_a_job_ends_where_there_are_not_enough_other_nodes(
    submit: Callable[..., Job], asks: None
) -> None:
    options = ("--nodes=3",)
    job = submit("train.sbatch", "train.py", options=options, REASON="SUSPECT", RANKS_PER_NODE="1")
    assert job.end() == 16, job.text
    assert "not queued again: without n3 there are no 3 nodes for it" in job.text
    assert ranks(job, "again") == set()
    assert job.shown()["JobState"] == "FAILED"


@slurm
def test_a_job_that_wants_to_start_again_goes_back_to_the_queue(
    submit: Callable[..., Job], asks: None
) -> None:
    job = submit("train.sbatch", "train.py", REASON="DEADLINE", RANKS_PER_NODE="1")
    assert job.end() == 0, job.text
    assert "\n[undaunted] preempted (exit code 75): " in job.text
    assert len(ranks(job, "again")) == 2


@slurm
def test_a_job_with_a_result_that_is_not_to_be_used_ends(
    submit: Callable[..., Job], asks: None
) -> None:
    job = submit("train.sbatch", "train.py", REASON="INVALID", RANKS_PER_NODE="1")
    assert job.end() == 17, job.text
    assert ranks(job, "again") == set()
    state = job.shown()
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "17:0")
    assert state["Comment"].startswith("invalid (exit code 17): rank 0 (node n1) ")


@slurm
def test_one_launcher_on_a_node_whatever_the_script_asks_for(
    submit: Callable[..., Job], script: Path
) -> None:
    (script / "finish").touch()
    job = submit("train.sbatch", "train.py", options=("--ntasks-per-node=2",))
    assert job.end() == 0, job.text
    assert sorted(re.findall(r"^rank (\d)/4 round 0 ", job.text, re.MULTILINE)) == list("0123")


def test_a_job_in_an_allocation(cluster: Cluster, script: Path) -> None:
    (script / "finish").touch()
    undaunted = ["undaunted", "srun", "--nproc-per-node", "2"]
    command = ["salloc", "--nodes", "2", "--no-kill", *undaunted, "train.py"]
    text = cluster.run(*command, cwd=script, OMP_NUM_THREADS="1")
    assert "rank 3/4 round 0 node 1 task 1 again 0" in text
    assert "finished: every rank exited with 0" in text  # said by two launchers, shown once


@slurm
def test_ctrl_c_in_the_terminal_of_an_allocation(cluster: Cluster, script: Path) -> None:
    os.mkfifo(script / "keys")
    os.mkfifo(script / "screen")
    launch = "salloc --nodes 2 --no-kill undaunted srun --nproc-per-node 1 train.py"
    shell = f"exec script --quiet --flush --return --command '{launch}' screen < keys"
    terminal = cluster.start("sh", "-c", shell, cwd=script)
    text = ""
    with (
        (script / "keys").open("r+b", buffering=0) as keys,
        (script / "screen").open("r+b", buffering=0) as screen,
    ):
        for awaited, then in (
            (r"rank 1/2 round 0 ", b"\x03"),
            (r"received SIGINT: passed on to the launchers as SIGTERM", b""),
        ):
            while not re.search(awaited, text):
                ready, _, _ = select.select([screen], [], [], 60)
                assert ready, text
                text += screen.read(65536).decode(errors="replace")
            keys.write(then)
        assert terminal.wait(60) == 75, text
        os.set_blocking(screen.fileno(), False)
        text += (screen.read(65536) or b"").decode(errors="replace")
    assert "preempted" in text
    assert cluster.run("squeue", "--noheader") == ""


@pytest.mark.slow
def test_a_job_without_enough_nodes_goes_back_to_the_queue(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """It does so at once: Slurm starts no launcher again in the same step."""
    job = submit("train.sbatch", "train.py")
    running(job, 4)
    for pid in launchers("n2", script):
        os.kill(pid, signal.SIGKILL)
    running(job, 4, again=1)
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert "too_few_nodes (exit code 19): " in job.text


def coordinator(cluster: Cluster, cwd: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the coordinator of `ARRAY`, and wait until it serves."""
    common = ["--nnodes", "1:2", "--elastic", "--rdzv-endpoint", "login:29400"]
    options = ["--rdzv-id", "array", "--run-dir", "undaunted-runs/array", "--max-restarts", "0"]
    words = ("undaunted", "coordinator", *common, *options, *more)
    started = cluster.start(*words, cwd=cwd, stderr=subprocess.PIPE)
    assert started.stderr is not None
    assert b"at port" in started.stderr.readline()
    return started


ARRAY = {"COORDINATOR": "login:29400", "NODES": "1:2", "RUN": "array"}


@pytest.mark.slow
def test_each_node_is_a_task_of_an_array(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """One of two is preempted; the other goes on, and takes it in again when it is back."""
    started = coordinator(cluster, script, "--rdzv-conf", "last_call_timeout=15")
    job = submit("array.sbatch", "train.py", options=("--array=0-1",), **ARRAY)
    running(job, 4)
    cluster.run("scancel", "--signal=TERM", f"{job.id}_1")
    job.wait_for(r"^rank 1/2 round 1 .* again 0$")
    job.wait_for(r"^rank 0/4 round 2 .* again 0$")
    job.wait_for(r"^rank 3/4 round 2 .* again 1$")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert started.stderr is not None
    with started.stderr:
        assert started.wait(60) == 0, started.stderr.read().decode()
    late = submit("array.sbatch", "train.py", options=("--array=0-0",), **ARRAY)
    assert late.end() == 0, late.text
    assert "round 0" not in late.text


@slurm
def test_a_task_that_comes_after_a_failed_job_ends_as_the_job(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """At once; and where a coordinator serves again, it takes part."""
    started = coordinator(cluster, script)
    options = ("--array=0-0",)
    given = {**ARRAY, "RANKS_PER_NODE": "1"}
    (script / "crash-0").touch()
    job = submit("array.sbatch", "train.py", options=options, **given)
    assert job.end() == 1, job.text
    assert started.stderr is not None
    with started.stderr:
        assert started.wait(60) == 1
    late = submit("array.sbatch", "train.py", options=options, **given)
    assert late.end() == 1, late.text
    assert "before this task came: failed (exit code 1): " in late.text
    assert "round 0" not in late.text
    (script / "crash-0").unlink()
    (script / "finish").touch()
    started = coordinator(cluster, script)
    again = submit("array.sbatch", "train.py", options=options, **given)
    assert again.end() == 0, again.text
    assert started.stderr is not None
    with started.stderr:
        assert started.wait(60) == 0


def test_a_task_of_a_sweep_goes_back_to_the_queue_alone(
    submit: Callable[..., Job], cluster: Cluster, script: Path
) -> None:
    """The last task of an array has the array's id: Slurm would take it for all tasks."""
    job = submit("train.sbatch", "train.py", options=("--array=0-1", "--nodes=1"), PORT="")
    job.wait_for(r"(?s)^rank 1/2 round 0 .*^rank 1/2 round 0 ")
    cluster.run("scancel", "--signal=TERM", f"{job.id}_1")
    job.wait_for(r"^rank 1/2 round 0 .* again 1$")
    (script / "finish").touch()
    assert job.end() == 0, job.text
    assert job.text.count("preempted (exit code 75)") == 1
    assert len(re.findall(r"^rank 1/2 round 0 .* again 0$", job.text, re.MULTILINE)) == 2
