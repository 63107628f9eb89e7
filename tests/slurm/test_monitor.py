"""`undaunted slurm-monitor` on a real cluster: 20 jobs of all kinds, each of them is told once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.services.slurm.fakes import Program, Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


class Jobs:
    """Jobs that run until there is a file ``go``, and how they shall end, by id."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.states: dict[str, str] = {}

    def submit(self, state: str, *options: str, end: str = "exit 0") -> str:
        script = f"echo runs; until [ -e {self.directory}/go ]; do sleep 0.2; done; {end}"
        words = ("sbatch", "--parsable", *options, "--wrap", script)
        id_ = self.cluster.run(*words, cwd=self.directory).strip()
        self.states[id_] = state
        return id_

    def array(self, tasks: int, *options: str) -> None:
        """All tasks but the first one fail."""
        end = "exit $SLURM_ARRAY_TASK_ID"
        id_ = self.submit("", "-w", "n2", f"--array=0-{tasks - 1}", *options, end=end)
        del self.states[id_]
        self.states |= {f"{id_}_{task}": "FAILED" if task else "COMPLETED" for task in range(tasks)}


@pytest.mark.slow
def test_jobs_of_all_kinds_are_told_once(
    cluster: Cluster, service: Service, tmp_path: Path
) -> None:
    """Twelve of them run at a time: each node has room for four."""
    jobs = Jobs(cluster, tmp_path)
    plain = [
        jobs.submit("COMPLETED", "-w", "n1", "-J", "a b", "-o", "%x-%5j.out") for _ in range(4)
    ]
    jobs.array(5, "-o", "%A_%3a.out")
    jobs.array(4)
    again, moved = (jobs.submit("COMPLETED", "--requeue") for _ in range(2))
    lost = jobs.submit("NODE_FAIL", "-w", "n3", "--no-requeue")
    cancelled = jobs.submit("CANCELLED", "-w", "n3")
    for _ in range(2):
        jobs.submit("FAILED", "-w", "n1", end="exit 3")
    jobs.submit("COMPLETED", "-w", "n1", ":", "-w", "n2")
    never = jobs.submit("", "--begin=now+1hour")
    del jobs.states[never]
    assert len(jobs.states) == 20
    program = Program(cluster.programs(), service, tmp_path / "state")
    try:
        service.wait_for([*plain, again, moved, lost, cancelled], "track_only")
        cluster.run("scancel", cancelled, never)
        cluster.run("scontrol", "requeue", again)
        service.wait_for([cancelled], "terminal")
        cluster.kill_slurmd("n3")
        cluster.run("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=test")
        service.wait_for([lost], "terminal")
        cluster.kill_slurmctld(plain[0])
        program.wait_for("Unable to contact slurm controller")
        cluster.start_slurmctld()
        program.wait_for("squeue works again")
        assert set(service.closings()) == {cancelled, lost}
        (tmp_path / "go").touch()
        program.wait_for("] job ", len(jobs.states))
    finally:
        code = program.end(signal.SIGTERM)
    assert code == 0
    assert service.closings() == dict.fromkeys(jobs.states, 1)
    kept = {
        path.stem: json.loads(path.read_bytes()) for path in (tmp_path / "state/jobs").iterdir()
    }
    assert {id_: job["state"] for id_, job in kept.items()} == jobs.states
    assert {id_ for id_, job in kept.items() if job["restarts"]} == {again, moved}
    for post in service.posts:
        assert Path(post["log_path"]).read_text().startswith("runs\n"), post
