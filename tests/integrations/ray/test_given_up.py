"""`run` where Ray gives something up: nodes that it drains, processes for want of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    # Ray's processes end a little after the driver that has started them.
    pytest.mark.leaves("processes"),
]

REPOSITORY = Path(__file__).parents[3]
# Three nodes. Once all ranks are at work, the node of one of them is drained. Which launcher is the
# spare depends on which one comes late.
DRAINED = """
import os, pathlib, ray, signal, subprocess, sys, threading
from ray.cluster_utils import Cluster
from undaunted.integrations.ray import run

def train(here):
    rank, here = os.environ["RANK"], pathlib.Path(here)
    if (here / "saved-0").exists() and (here / "saved-1").exists():
        return "goes on"
    def save(*_):
        (here / f"saved-{rank}").touch()
        sys.exit(1)
    signal.signal(signal.SIGTERM, save)
    node = os.environ["UNDAUNTED_NODE"].rpartition("-")[2]  # of its id, what makes names differ
    (here / "pipe").write_text(node[:6])
    while True:
        signal.pause()

def drain(here):
    with (here / "pipe").open("r+b", buffering=0) as pipe:
        begins, _ = (pipe.read(6).decode() for _ in range(2))
    (node,) = (one["NodeID"] for one in ray.nodes() if one["NodeID"].startswith(begins))
    command = ["ray", "drain-node", "--address", cluster.address]
    command += ["--node-id", node, "--reason-message", "test"]
    command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--deadline-remaining-seconds", "600"]
    subprocess.run(command, check=True)

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
for _ in range(3):
    cluster.add_node(num_cpus=1)
cluster.wait_for_nodes(timeout=60)
ray.init(cluster.address)
here = pathlib.Path(sys.argv[1])
os.mkfifo(here / "pipe")
threading.Thread(target=drain, args=(here,), daemon=True).start()
more = {"min_nodes": 2} if sys.argv[2] == "3" else {}
print(run(train, str(here), nodes=int(sys.argv[2]), nproc_per_node=1, max_restarts=0, **more))
ray.shutdown()
cluster.shutdown()
"""
KILLED = """
import ray
from undaunted.fault_tolerance import LaunchError
from undaunted.integrations.ray import run
ray.init()
try:
    run("train.py", nodes=1, nproc_per_node=1, max_restarts=1)
except LaunchError as error:
    print("raised:", error.message)
"""


def run(folder: Path, program: str, *args: str, **env: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    inherited |= {"PATH": path, "PYTHONPATH": str(REPOSITORY / "src")}
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # sockets lie there
        env |= {"RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        ended = subprocess.run(
            [sys.executable, "-c", program, *args],
            cwd=folder,
            env={**inherited, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.parametrize("nodes", ["2", "3"])
def test_ranks_save_before_a_node_is_drained(tmp_path: Path, nodes: str) -> None:
    """No restart is used: the job begins again on other nodes, or goes on with its spare."""
    text = run(tmp_path, DRAINED, str(tmp_path), nodes)
    assert "{0: 'goes on', 1: 'goes on'}" in text, text
    assert "Ray drains node" in text


def test_the_memory_monitor_kills_no_oftener_than_restarts_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import signal\nsignal.pause()\n")
    # Any use of memory is too much.
    limits = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    text = run(tmp_path, KILLED, **limits)
    (raised,) = [line for line in text.splitlines() if line.startswith("raised: ")]
    assert "the launcher of node 0 was lost 2 times: Ray's memory monitor" in raised
