"""A rank that is slower than the others is named while the job runs; the program only steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched, nodes_of_a_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch]

SCRIPT = """
    import os, time
    import torch, torch.distributed as dist
    import undaunted
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    go_on = torch.ones(1)
    while go_on.item():
        undaunted.step(step)
        if step == 5:
            os.write(1, f"rank {rank} steps\\n".encode())
        time.sleep(0.06 if rank == 2 else 0.03)  # work
        go_on.fill_(rank != 0 or not os.path.exists("enough"))
        dist.all_reduce(go_on, dist.ReduceOp.MIN)
        step += 1
"""
# In the place of the driver: GPU 7 is too hot, and every process uses it.
PROVIDER = """
import json, os, socket, sys
with socket.socket(fileno=int(sys.argv[1])).makefile("rwb") as stream:
    for _ in stream:
        users = {name: None for name in os.listdir("/proc") if name.isdecimal()}
        gpu = {"index": 7, "processes": users, "throttled": ["HW Thermal Slowdown"]}
        stream.write(json.dumps({"devices": [gpu]}).encode() + b"\\n")
        stream.flush()
"""
LINE = r"rank 2 \(node (\S+)\) is slow"


def test_on_one_node(tmp_path: Path) -> None:
    provider = tmp_path / "provider.py"
    provider.write_text(PROVIDER)
    options = ("--nproc-per-node", "4", "--node-name", "n0")
    env = {"UNDAUNTED_DEVICE_PROVIDER": str(provider)}
    with launched(tmp_path, SCRIPT, *options, **env) as launcher:
        assert launcher.wait_for(LINE)[1] == "n0"
        assert launcher.wait_for(r"GPU (\d+), which rank 2 uses")[1] == "7"
        (tmp_path / "enough").touch()
        launcher.finish()
        (slow,) = launcher.events("slow_rank")
        (gpu,) = launcher.events("gpu_throttled")
    assert (slow["rank"], slow["on"], slow["round"]) == (2, "n0", 0)
    assert slow["slower"] > 0.3  # type: ignore[operator]
    assert (gpu["rank"], gpu["gpu"], gpu["reasons"]) == (2, 7, ["HW Thermal Slowdown"])


def test_all_nodes_say_it(tmp_path: Path) -> None:
    options = ("--nnodes", "2", "--nproc-per-node", "2")
    with nodes_of_a_job(tmp_path, SCRIPT, *options) as start:
        nodes = [start("a", "is_host=1"), start("b", "is_host=0")]
        assert [launcher.wait_for(LINE)[1] for launcher in nodes] == ["b", "b"]
        (tmp_path / "enough").touch()
        for launcher in nodes:  # gloo may fail in ranks that others leave
            launcher.finish()


@pytest.mark.slow
def test_a_job_of_one_node_is_ended_where_that_was_chosen(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "4", "--max-restarts", "3", "--slow-ranks", "stop",
               "--slow-ranks-after", "0.5s")  # fmt: skip
    with launched(tmp_path, SCRIPT, *options) as launcher:
        assert launcher.finish() == 93, launcher.text
        assert len(launcher.events("round_started")) == 1
        (ended,) = launcher.events("job_ended")
    assert ended["outcome"] == "no_restart"
    assert "rank 2 (node" in str(ended["reason"])


SLOW_ON_TWO = "rank == 2 and os.environ['ROLE_NAME'] == 'two' and os.path.exists('spare')"


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_slow_node(tmp_path: Path) -> None:
    """It is no restart of those that the job is allowed."""
    script = SCRIPT.replace("rank == 2", SLOW_ON_TWO)
    options = ("--nnodes", "2:3", "--nproc-per-node", "2", "--slow-ranks", "exclude",
               "--slow-ranks-after", "0.5s")  # fmt: skip
    with nodes_of_a_job(tmp_path, script, *options) as start:
        one = start("one", "is_host=1", "--role", "one")
        two = start("two", "is_host=0", "--role", "two")
        one.wait_for("rank 0 steps")
        three = start("three", "is_host=0", "--role", "three")
        one.wait_for("spare nodes: three")
        (tmp_path / "spare").touch()
        assert two.finish() == 1, two.text
        assert "node two is left out: rank 2 " in two.text
        three.wait_for("rank 2 steps")
        (tmp_path / "enough").touch()
        for launcher in (one, three):  # gloo may fail in ranks that others leave
            launcher.finish()


@pytest.mark.slow
def test_without_the_recorder_nothing_is_said(tmp_path: Path) -> None:
    script = SCRIPT.replace('os.path.exists("enough")', "step > 200")
    options = ("--nproc-per-node", "4", "--flight-recorder", "off")
    with launched(tmp_path, script, *options) as launcher:
        launcher.finish()
        assert launcher.events("round_progress")
        assert launcher.events("slow_rank") == []
