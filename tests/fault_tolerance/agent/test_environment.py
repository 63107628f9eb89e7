"""The environment of ranks, and the NUMA nodes they are bound to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from undaunted.coordinator.policy.messages import Start
from undaunted.coordinator.wire import credentials
from undaunted.fault_tolerance import metrics_config
from undaunted.fault_tolerance.agent.environment import (
    NOT_BOUND,
    SECRETS,
    RankPlace,
    numa_node_of,
    numa_problem,
    numactl,
    shared_environment,
    worker_environment,
)
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.run_config import RunConfig

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = RunConfig(
    run_id="r",
    node="a",
    nproc_per_node=4,
    max_restarts=3,
    kind="script",
    target="t.py",
    args=[],
    cwd="/",
    run_dir="/run",
    log_dir="/run/logs",
    stdout=[0] * 4,
    stderr=[0] * 4,
)
START = Start("a", 2, 1, 2, 4, 4, 8, 3, "127.0.0.1", 12345)

PREFERABLY = FaultToleranceConfig(numa_bind_strict=False)


def environment(shared: dict[str, str], **options: str) -> dict[str, str]:
    place = RankPlace(local_rank=1, page="v1:3:1:4:5:6", error_file=options.pop("error", "/e"))
    return worker_environment(shared, CONFIG, START, place, **options)


def test_torchruns_contract() -> None:
    env = environment({"HOME": "/root"})
    wanted = {
        "HOME": "/root",
        "LOCAL_RANK": "1",
        "RANK": "5",
        "GROUP_RANK": "1",
        "ROLE_RANK": "5",
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": "4",
        "WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "12345",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/e",
        "FT_LAUNCHER_IPC_SOCKET": "/run/launcher.socket",
        "FT_RANK_MONITOR_IPC_SOCKET": "/run/rank-1.socket",
        "UNDAUNTED_NODE": "a",
    }
    assert wanted.items() <= env.items()


def test_where_the_guard_of_restartable_functions_is() -> None:
    env = worker_environment({}, CONFIG, START, RankPlace(1, "p", "", guard="undaunted-1"))
    assert env["UNDAUNTED_INPROCESS"] == "undaunted-1"


def test_virtual_local_rank_is_0_with_one_device_of_its_own() -> None:
    config = msgspec.structs.replace(CONFIG, virtual_local_rank=True)
    place = RankPlace(local_rank=1, page="p", error_file="/e")
    for visible, own in (("4, 7,9", "7"), ("GPU-a,GPU-b", "GPU-b"), (None, "1")):
        shared = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        env = worker_environment(shared, config, START, place)
        assert (env["LOCAL_RANK"], env["CUDA_VISIBLE_DEVICES"]) == ("0", own)
        assert env["RANK"] == "5"


def test_socket_of_the_health_service_is_handed_on() -> None:
    config = msgspec.structs.replace(CONFIG, node_health_socket="/run/health")
    env = worker_environment({}, config, START, RankPlace(0, "p", "/e"))
    assert env["UNDAUNTED_NODE_HEALTH_CHECK_ENDPOINT"] == "/run/health"
    assert "UNDAUNTED_NODE_HEALTH_CHECK_ENDPOINT" not in environment({})


def test_one_thread_per_rank_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shared_environment({}, 4)["OMP_NUM_THREADS"] == "1"
    assert shared_environment({"OMP_NUM_THREADS": "6"}, 4)["OMP_NUM_THREADS"] == "6"
    monkeypatch.setattr(f"{shared_environment.__module__}.cpu_quota", lambda: None)
    assert "OMP_NUM_THREADS" not in shared_environment({}, 1)
    monkeypatch.setattr(f"{shared_environment.__module__}.cpu_quota", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert shared_environment({}, 1)["OMP_NUM_THREADS"] == "1"
    assert shared_environment({"OMP_NUM_THREADS": "6"}, 1)["OMP_NUM_THREADS"] == "6"


def test_the_recorder_is_on_unless_the_user_has_said_otherwise() -> None:
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    on = shared_environment({}, 1, flight_recorder=True)
    assert {name: on[name] for name in names if name in on} == {names[0]: "2000"}
    for name in names:
        own = shared_environment({name: "7"}, 1, flight_recorder=True)
        assert {each: own[each] for each in names if each in own} == {name: "7"}
    off = shared_environment({}, 1)
    assert {name: off[name] for name in names if name in off} == {names[0]: "0"}


def test_what_launchers_know_each_other_by_is_not_for_the_ranks() -> None:
    secrets = {"UNDAUNTED_TOKEN": "a", "UNDAUNTED_METRICS_TOKEN": "b"}
    shared = shared_environment({**secrets, "HOME": "/h"}, 2)
    assert secrets.keys().isdisjoint(shared)
    assert shared["HOME"] == "/h"


def test_only_the_plan_of_this_round_reaches_the_ranks() -> None:
    shared = shared_environment({"UNDAUNTED_FAULTS": "of somebody else"}, 2)
    assert "UNDAUNTED_FAULTS" not in environment(shared)
    assert environment(shared, faults="abort:rank=0")["UNDAUNTED_FAULTS"] == "abort:rank=0"


def test_without_an_error_file_that_of_a_launcher_above_us_is_not_overwritten() -> None:
    env = environment({"TORCHELASTIC_ERROR_FILE": "/above"}, error="")
    assert "TORCHELASTIC_ERROR_FILE" not in env


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
    assert [numa_node_of(config(), rank) for rank in range(4)] == [0, 0, 1, 1]
    assert numa_node_of(config(gpus_per_numa=0), 3) == NOT_BOUND


def test_the_command_of_programs() -> None:
    assert numactl(1, strict=True) == ["numactl", "--cpunodebind=1", "--membind=1"]
    assert numactl(1, strict=False) == ["numactl", "--cpunodebind=1", "--localalloc"]


def test_ranks_that_can_be_bound(tmp_path: Path) -> None:
    root = machine(tmp_path, 2)
    assert numa_problem(config(ft=PREFERABLY), {}, root) == ""


def test_a_node_that_does_not_exist(tmp_path: Path) -> None:
    said = numa_problem(config(ft=PREFERABLY), {}, machine(tmp_path, 1))
    assert said == (
        "NVRX_GPUS_PER_NUMA=2 binds local rank 2 to NUMA node 1: "
        "there is no NUMA node 1 here (there are: 0)"
    )


def test_programs_take_numactl(tmp_path: Path) -> None:
    root = machine(tmp_path, 2)
    foreign = config(kind="program", ft=PREFERABLY)
    (tmp_path / "bin").mkdir()
    path = {"PATH": str(tmp_path / "bin")}
    assert "numactl, which is not found; install it" in numa_problem(foreign, path, root)
    (tmp_path / "bin" / "numactl").touch(0o700)
    assert numa_problem(foreign, path, root) == ""


@pytest.mark.parametrize("nproc", [1, 2])
def test_only_nodes_that_are_needed(tmp_path: Path, nproc: int) -> None:
    few = config(nproc_per_node=nproc, ft=PREFERABLY)
    assert numa_problem(few, {}, machine(tmp_path, 1)) == ""


def test_the_secrets_of_launchers_have_their_names() -> None:
    assert SECRETS == (credentials.TOKEN_VARIABLE, metrics_config.TOKEN_VARIABLE)
