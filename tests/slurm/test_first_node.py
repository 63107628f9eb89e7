"""The first node of a job loses its power, and with it the batch script and all that is shown."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import DEADLINE_S
from undaunted.base.inotify import Inotify
from undaunted.base.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.slurm.cluster import Cluster, Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# Goes on until there is a file named finish.
RANK = """
    import os, pathlib, threading
    import undaunted
    e = os.environ
    again = e.get("SLURM_RESTART_COUNT", "0")
    about = "rank {RANK}/{WORLD_SIZE} round {TORCHELASTIC_RESTART_COUNT}".format(**e)
    print(about, "again", again, flush=True)
    step = 1000 * int(again)
    while not pathlib.Path("finish").exists():
        undaunted.step(step)
        step += 1
        threading.Event().wait(0.02)
"""


@pytest.fixture
def start(submit: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    (tmp_path / "train.py").write_text(textwrap.dedent(RANK))

    def start(nodes: str, *options: str, of: int) -> Job:
        """Start a job, and wait until it trains."""
        job = submit(
            "train.sbatch",
            *options,
            "train.py",
            options=(f"--nodes={of}",),
            NODES=nodes,
            RANKS_PER_NODE="1",
        )
        job.wait_for(rf"^rank 0/{of} round 0 again 0$")
        return job

    return start


def until_slurm_says(text: str, cluster: Cluster) -> None:
    """Wait for a line of Slurm's controller."""
    log, watch = cluster.directory / "slurmctld.log", Inotify()
    try:
        watch.watch(str(log))
        while text not in log.read_text():
            assert wait_readable(watch.fileno(), DEADLINE_S), f"Slurm does not say {text!r}"
            watch.drain()
    finally:
        watch.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_back", [False, pytest.param(True, marks=pytest.mark.slurm)])
def test_it_goes_on_and_leaves_the_queue(
    start: Callable[..., Job], cluster: Cluster, tmp_path: Path, is_back: bool
) -> None:
    job = start("2", "--elastic", of=3)
    cluster.power_off("n1")
    job.wait_for("node n1, which runs the batch script, has no part in round 1")
    if is_back:
        until_slurm_says("Removing failed node n1", cluster)
        cluster.power_on("n1")
    (tmp_path / "finish").touch()
    job.end()
    assert job.shown()["JobState"] == "CANCELLED"
    assert "finished (exit code 0)" in job.text
    run = tmp_path / "undaunted-runs" / f"slurm-{job.id}"
    printed = [path.read_text() for path in run.glob("logs-n*/attempt_1/0/stdout.log")]
    assert sorted(printed) == [f"rank {rank}/2 round 1 again 0\n" for rank in range(2)]
    for node in ("n2", "n3"):
        assert "finished" in (run / f"launcher-{node}.log").read_text()


@pytest.mark.slurm
@pytest.mark.parametrize("of", [3, 2])
def test_it_goes_back_to_the_queue_where_it_cannot_go_on(
    start: Callable[..., Job], cluster: Cluster, tmp_path: Path, of: int
) -> None:
    job = start(str(of), "--rdzv-conf", "join_timeout=6", of=of)
    cluster.power_off("n1")
    job.wait_for("Slurm is asked to queue the job again")
    cluster.power_on("n1")
    job.wait_for(rf"^rank 0/{of} round 0 again 1$")
    (tmp_path / "finish").touch()
    assert job.end() == 0
    assert job.shown()["JobState"] == "COMPLETED"
