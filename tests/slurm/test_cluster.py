"""The cluster is what it seems: its nodes are machines, and nothing of it is left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import alive, wait_until_gone
from tests.slurm.cluster import NODES, ROOT, Cluster, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_not()), reason=why_not())]

# What a machine is to programs that run on it.
ABOUT = "hostname; readlink /proc/self/ns/{net,pid,mnt,uts}; cat /proc/sys/kernel/hostname"


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory:
        cluster = Cluster(Path(directory))
        try:
            yield cluster
        finally:
            cluster.close()


def of_this_machine() -> list[str]:
    """Its links and mounts."""
    links = sorted(path.name for path in Path("/sys/class/net").iterdir())
    return [*links, Path("/proc/self/mounts").read_text()]


def test_each_node_is_a_machine_of_its_own() -> None:
    with running() as cluster:
        words = ("srun", "--nodes=3", "--label", "bash", "-c", ABOUT)
        lines = cluster.run(*words).split("\n")
        told = [{line.partition(": ")[2] for line in lines if line[:1] == n} for n in "012"]
        assert not told[0] & told[1] | told[1] & told[2] | told[0] & told[2]
        assert [set(NODES) & one for one in told] == [{node} for node in NODES]
        cluster.run("touch", "/dev/shm/one", "/tmp/two", on="n1")
        there = cluster.run("srun", "--nodelist=n2", "ls", "/dev/shm", "/tmp")
        assert {"one", "two"}.isdisjoint(there.split())


@pytest.mark.slow
def test_a_node_loses_its_power_and_comes_back() -> None:
    with running() as cluster:
        job = cluster.run(
            "sbatch", "--parsable", "-w", "n2", "--no-requeue", "--wrap", "sleep 600"
        ).strip()
        cluster.run("srun", "--nodelist=n2", "true")
        cluster.power_off("n2")
        cluster.run("srun", f"--dependency=afterany:{job}", "true")
        assert "JobState=NODE_FAIL" in cluster.run("scontrol", "show", "job", job)
        cluster.power_on("n2")
        assert cluster.run("srun", "--nodelist=n2", "hostname").endswith("n2\n")


def test_a_cable_is_pulled_out() -> None:
    with running() as cluster:
        reach = ("bash", "-c", "echo > /dev/tcp/n2/6818")
        cluster.run("timeout", "5", *reach, on="n1")
        cluster.cut("n2")
        with pytest.raises(AssertionError):
            cluster.run("timeout", "1", *reach, on="n1")
        cluster.mend("n2")
        cluster.run("timeout", "5", *reach, on="n1")


def test_two_clusters_never_meet_and_leave_nothing() -> None:
    before = of_this_machine()
    with running() as one, running() as other:
        job = one.run("sbatch", "--parsable", "--wrap", "sleep 600").strip()
        one.run("srun", "true")
        assert job in one.run("squeue", "--noheader", "--format=%i %T")
        assert not other.run("squeue", "--noheader")
        pids = [pid for cluster in (one, other) for pid in cluster.processes("n1")]
        pids += [*one.hosts.pids, *other.hosts.pids]
        assert of_this_machine() == before
    assert wait_until_gone(pids, 10) == []
    assert of_this_machine() == before


def test_nothing_is_left_of_a_test_that_was_killed(tmp_path: Path) -> None:
    script = "import sys, pathlib; from tests.slurm.cluster import Cluster"
    script += "; it = Cluster(pathlib.Path(sys.argv[1])); print(it.hosts.pids, flush=True); input()"
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as directory,
        subprocess.Popen(
            [sys.executable, "-c", script, directory],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as killed,
    ):
        pids = [int(pid) for pid in killed.stdout.readline().strip(b"[]\n").split(b",")]
        assert len([pid for pid in pids if alive(pid)]) == 5
        killed.kill()
        killed.wait(10)
        assert wait_until_gone(pids, 10) == []
