"""Which NUMA node a rank is bound to, and what speaks against it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.fault_tolerance.agent.round import binding
from undaunted.fault_tolerance.run_config import RunConfig

if TYPE_CHECKING:
    from pathlib import Path


def config(**options: Any) -> RunConfig:
    defaults: dict[str, Any] = {"kind": "script", "nproc_per_node": 4, "gpus_per_numa": 2}
    return RunConfig(
        run_id="x", node="here", max_restarts=0, target="train.py", args=[], cwd="/",
        run_dir="/", log_dir="/", stdout=[0] * 4, stderr=[0] * 4, **{**defaults, **options},
    )  # fmt: skip


def machine(root: Path, nodes: int) -> Path:
    """A tree as in /sys/devices/system/node, whose nodes have the CPUs of this process."""
    cpus = ",".join(map(str, os.sched_getaffinity(0)))
    (root / "online").write_text(f"0-{nodes - 1}\n")
    for node in range(nodes):
        (root / f"node{node}").mkdir()
        (root / f"node{node}" / "cpulist").write_text(cpus + "\n")
    return root


def test_ranks_are_dealt_to_nodes_in_order() -> None:
    assert [binding.node_of(config(), rank) for rank in range(4)] == [0, 0, 1, 1]
    assert binding.node_of(config(gpus_per_numa=0), 3) == binding.NOT_BOUND


def test_the_command_of_programs() -> None:
    assert binding.numactl(1, strict=True) == ["numactl", "--cpunodebind=1", "--membind=1"]
    assert binding.numactl(1, strict=False) == ["numactl", "--cpunodebind=1", "--localalloc"]


def test_ranks_that_can_be_bound(tmp_path: Path) -> None:
    root = machine(tmp_path, 2)
    assert binding.problem(config(numa_bind_strict=False), {}, root) == ""


def test_a_node_that_does_not_exist(tmp_path: Path) -> None:
    said = binding.problem(config(numa_bind_strict=False), {}, machine(tmp_path, 1))
    assert said == (
        "NVRX_GPUS_PER_NUMA=2 binds local rank 2 to NUMA node 1: "
        "there is no NUMA node 1 here (there are: 0)"
    )


def test_programs_take_numactl(tmp_path: Path) -> None:
    root = machine(tmp_path, 2)
    foreign = config(kind="program", numa_bind_strict=False)
    (tmp_path / "bin").mkdir()
    path = {"PATH": str(tmp_path / "bin")}
    assert "numactl, which is not found; install it" in binding.problem(foreign, path, root)
    (tmp_path / "bin" / "numactl").touch(0o700)
    assert binding.problem(foreign, path, root) == ""


@pytest.mark.parametrize("nproc", [1, 2])
def test_only_nodes_that_are_needed(tmp_path: Path, nproc: int) -> None:
    few = config(nproc_per_node=nproc, numa_bind_strict=False)
    assert binding.problem(few, {}, machine(tmp_path, 1)) == ""
