"""The checks, each by what it says to facts that were made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.doctor.saying import ISSUES, said, wanting
from undaunted.base.sizes import GIB, MIB
from undaunted.doctor.checks import (
    MEMORY,
    environment,
    gpu,
    judge,
    limits,
    memory,
    scheduler,
    shared_memory,
    software,
    storage,
    temporary,
    threads,
    tracing,
    unanswered,
)
from undaunted.doctor.facts import Asked, Cgroup, Facts, FileSystem, Gpus, Limit, Trial

if TYPE_CHECKING:
    from undaunted.doctor.advice import Advice


# --- environment ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "row"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", ("E01", "warn")),
        ("NCCL_BLOCKING_WAIT", "0", ("E03", "warn")),
        ("TORCH_NCCL_BLOCKING_WAIT", "True", ("E04", "warn")),
        ("TORCH_NCCL_ENABLE_MONITORING", "0", ("E06", "info")),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "3600", ("E07", "info")),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", ("E08", "warn")),
        ("NCCL_IB_TIMEOUT", "14", ("E16", "warn")),
        ("NCCL_IB_RETRY_CNT", "3", ("E16", "warn")),
        ("NCCL_DEBUG", "trace", ("E17", "warn")),
        ("NCCL_TIMEOUT", "600", ("E18", "warn")),
        ("NCCL_ALGO", "Ring", ("E19", "warn")),
        ("GLOO_SOCKET_IFNAME", "^lo,docker", ("E20", "fail")),
        ("PYTORCH_CUDA_ALLOC_CONF", "a:1,expandable_segments:True", ("E21", "info")),
        ("CUDA_LAUNCH_BLOCKING", "1", ("E22", "warn")),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5", ("E24", "warn")),
    ],
)
def test_variables_that_hurt(name: str, value: str, row: tuple[str, str]) -> None:
    assert said(environment, environ={name: value}) == [(*row, f"{name}={value}")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_IB_TIMEOUT", "many"),
        ("NCCL_DEBUG", "WARN"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "nan"),
        ("NOTHING_KNOWN", "1"),
    ],
)
def test_variables_that_do_not(name: str, value: str) -> None:
    assert said(environment, environ={name: value}) == []


def test_variables_of_restart_inside_the_process() -> None:
    asked = wanting("inprocess")
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert said(environment, asked, environ={name: "0"}) == []
    assert said(environment, asked, environ={name: "3"}) == [("E01", "warn", f"{name}=3")]
    unset = {row[0] for row in said(environment, asked, versions={"nccl": "2.28.9"})}
    assert unset >= {"E05", "E15"}
    assert said(environment, asked) == []  # without NCCL these do not matter


def test_values_are_shown_safely() -> None:
    ((_, _, found),) = said(environment, environ={"NCCL_ALGO": "\x1b[2J\n" + "x" * 9999})
    assert found.isprintable()
    assert len(found) < 600


# --- gpu ------------------------------------------------------------------------------------------


def test_gpus() -> None:
    assert said(gpu, gpus=Gpus()) == []
    fine = Gpus(present=True, count=8, kernel_driver="570.1", nvswitch=True, fabric_manager=True)
    assert said(gpu, gpus=fine, versions={"nvidia-driver": "570.1"}) == []
    assert said(gpu, gpus=fine, versions={"nvidia-driver": "575.2"})[0][:2] == ("L22", "fail")
    silent = Gpus(present=True, problem="Driver/library version mismatch (18)")
    assert said(gpu, gpus=silent)[0][1] == "fail"
    unmanaged = Gpus(present=True, count=8, nvswitch=True, fabric_manager=False)
    assert said(gpu, gpus=unmanaged)[0][1] == "fail"
    assert said(gpu, gpus=unmanaged, in_container=True)[0][1] == "warn"
    broken = Gpus(present=True, count=1, states="GPU 0 (GPU-1) needs a reset of the GPU")
    assert said(gpu, gpus=broken)[0][1] == "fail"
    assert said(gpu, wanting(nproc_per_node=8), gpus=Gpus(present=True, count=4))[0][1] == "warn"


# --- judge ----------------------------------------------------------------------------------------


def test_nothing_known_is_nothing_said() -> None:
    assert judge(Facts(), Asked(), ISSUES) == []


def test_a_check_that_breaks_does_not_stop_the_others() -> None:
    def broken(facts: Facts, asked: Asked, issues: Any) -> list[Advice]:
        raise ZeroDivisionError("by\nzero")

    checks = {"luck": broken, MEMORY: memory}
    found = judge(Facts(oom_score_adj=7), Asked(), ISSUES, checks)
    assert [(finding.id, finding.subject) for finding in found] == [
        ("D01", "luck"),
        ("L11", "memory"),
    ]
    assert "this check is broken (ZeroDivisionError('by\\nzero'))" in found[0].found


# --- limits ---------------------------------------------------------------------------------------


def test_open_files() -> None:
    few = {"nofile": Limit(1024, 524288)}
    found = [("L03", "warn", "ulimit -n is 1024 (up to 524288 allowed)")]
    assert said(limits, limits=few) == found
    assert said(limits, limits={"nofile": Limit(1024, None)})[0][2].endswith("unlimited allowed)")
    assert said(limits, limits={"nofile": Limit(20000, 20000)})[0][1] == "info"
    assert said(limits, limits={"nofile": Limit(65536, 65536)}) == []
    assert said(limits, limits={"nofile": Limit(None, None)}) == []


def test_locked_memory_only_with_rdma() -> None:
    small = {"memlock": Limit(8 * MIB, 8 * MIB)}
    assert said(limits, limits=small) == []
    assert said(limits, limits=small, rdma=("mlx5_0",))[0][:2] == ("L02", "fail")
    assert said(limits, wanting("rdma"), limits=small)[0][:2] == ("L02", "fail")
    large = {"memlock": Limit(64 * GIB, None)}
    assert said(limits, limits=large, rdma=("mlx5_0",))[0][:2] == ("L02", "warn")
    assert said(limits, limits={"memlock": Limit(None, None)}, rdma=("mlx5_0",)) == []


def test_stack_and_limits_that_slurm_hands_on() -> None:
    unlimited = {"stack": Limit(None, None)}
    assert said(limits, limits=unlimited)[0][:2] == ("L05", "info")
    assert said(limits, wanting("nvl72"), limits=unlimited)[0][:2] == ("L05", "warn")
    assert said(limits, limits={"stack": Limit(8 * MIB, None)}) == []
    few = {"nofile": Limit(1024, 524288)}
    handed = said(limits, limits=few, environ={"SLURM_RLIMIT_NOFILE": "1024"})
    assert [row[0] for row in handed] == ["L03", "L06"]
    other = said(limits, limits=few, environ={"SLURM_RLIMIT_NOFILE": "garbage"})
    assert [row[0] for row in other] == ["L03"]


# --- memory ---------------------------------------------------------------------------------------


def test_memory_of_the_container() -> None:
    tight = Cgroup(memory_max=4 * GIB, memory_now=3 * GIB, oom_kills=2)
    found = said(memory, cgroup=tight)
    assert [row[:2] for row in found] == [("L10", "warn"), ("L10", "warn")]
    assert found[0][2] == "the container may use 4 GiB, 1 GiB more"
    assert "has killed 2 processes" in found[1][2]
    assert said(memory, cgroup=Cgroup(memory_max=64 * GIB, memory_now=None)) == []
    eight = wanting(nproc_per_node=8)
    assert said(memory, eight, cgroup=Cgroup(memory_max=12 * GIB))[0][0] == "L10"


def test_overcommit_scores_and_core_files() -> None:
    assert said(memory, settings={"vm.overcommit_memory": "2"})[0][:2] == ("L11", "warn")
    assert said(memory, settings={"vm.overcommit_memory": "0"}) == []
    assert said(memory, settings={"vm.overcommit_memory": "\0\0 2 2"}) == []
    assert said(memory, oom_score_adj=500)[0][:2] == ("L11", "info")
    cores = {"core": Limit(None, None)}
    assert said(memory, limits=cores)[0][:2] == ("L11", "info")
    piped = {"kernel.core_pattern": "|/usr/share/apport %p"}
    assert said(memory, limits=cores, settings=piped) == []
    assert said(memory, limits={"core": Limit(0, None)}) == []


# --- scheduler ------------------------------------------------------------------------------------


def test_slurm() -> None:
    assert said(scheduler, environ={"SLURM_KILL_BAD_EXIT": "1"})[0][:2] == ("L18", "fail")
    assert said(scheduler, environ={"SLURM_KILL_BAD_EXIT": "0"}) == []
    assert said(scheduler, slurm={"KillOnBadExit": "1"})[0][:2] == ("L18", "warn")
    overridden = {"SLURM_KILL_BAD_EXIT": "0"}
    assert said(scheduler, slurm={"KillOnBadExit": "1"}, environ=overridden) == []
    assert said(scheduler, environ={"SLURM_WAIT": "10"})[0][:2] == ("L18", "fail")
    assert said(scheduler, slurm={"WaitTime": "60 sec"})[0][:2] == ("L18", "warn")
    assert said(scheduler, slurm={"WaitTime": "0 sec", "KillOnBadExit": "0"}) == []
    assert said(scheduler, slurm={"WaitTime": "60 sec"}, environ={"SLURM_WAIT": "0"}) == []
    assert said(scheduler, slurm={"KillWait": "30 sec"})[0][:2] == ("L19", "info")
    assert said(scheduler, slurm={"KillWait": "300 sec"}) == []
    tight = {"UnkillableStepTimeout": "60 sec", "MessageTimeout": "20 sec"}
    assert said(scheduler, slurm=tight)[0][:2] == ("L19", "warn")
    assert said(scheduler, slurm={"KillWait": "", "MessageTimeout": "(null)"}) == []


def test_kubernetes() -> None:
    found = said(scheduler, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert [row[:2] for row in found] == [("L20", "info")]


# --- shared memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "free", "severity"),
    [(64 * MIB, 64 * MIB, "fail"), (8 * GIB, 100 * MIB, "warn"), (8 * GIB, 2 * GIB, None)],
)
def test_shared_memory(total: int, free: int, severity: str | None) -> None:
    shm = FileSystem(path="/dev/shm", size=total, free=free)
    found = said(shared_memory, file_systems={"shm": shm})
    assert [row[:2] for row in found] == ([("L01", severity)] if severity else [])


def test_shared_memory_for_checkpoints_that_is_away_or_unknown() -> None:
    asked = wanting("async-checkpoint", checkpoint_bytes=40 * GIB)
    shm = FileSystem(path="/dev/shm", size=32 * GIB, free=30 * GIB)
    ((key, severity, found),) = said(shared_memory, asked, file_systems={"shm": shm})
    assert (key, severity) == ("L01", "warn")
    assert found == "/dev/shm has 30 GiB free of 32 GiB"
    gone = FileSystem(path="/dev/shm", problem="No such file or directory")
    assert said(shared_memory, file_systems={"shm": gone})[0][1] == "fail"
    assert said(shared_memory) == []
    assert said(shared_memory, file_systems={"shm": FileSystem(path="/dev/shm")}) == []


# --- software -------------------------------------------------------------------------------------


def test_a_version_with_a_bug() -> None:
    found = software(Facts(versions={"nccl": "2.28.5"}), Asked(), ISSUES)
    (row,) = [finding for finding in found if finding.id == "V14"]
    assert (row.severity, row.found) == ("warn", "NCCL 2.28.5")
    assert row.wanted == "2.28.7 or newer, or older than 2.28.3"
    assert row.remedy == "use NCCL 2.28.7 or newer"
    assert row.sources


def test_rows_of_a_feature_only_for_that() -> None:
    facts = Facts(versions={"nccl": "2.28.5"})
    assert "V01" not in {finding.id for finding in software(facts, Asked(), ISSUES)}
    found = {f.id: f for f in software(facts, wanting("inprocess"), ISSUES)}
    assert found["V01"].severity == "fail"


def test_rows_of_an_architecture_a_neighbour_or_a_variable() -> None:
    versions = {"nccl": "2.29.2"}
    assert "V07" in {row[0] for row in said(software, arch="aarch64", versions=versions)}
    assert "V07" not in {row[0] for row in said(software, arch="x86_64", versions=versions)}
    torch = {"torch": "2.13.0+cpu"}
    assert "V22" not in {row[0] for row in said(software, versions=torch)}
    both = torch | {"nvidia-resiliency-ext": "0.5.0"}
    assert "V22" in {row[0] for row in said(software, versions=both)}
    ras = {"nccl": "2.27.2"}
    assert "V11" in {row[0] for row in said(software, versions=ras)}
    off = {"NCCL_RAS_ENABLE": "0"}
    assert "V11" not in {row[0] for row in said(software, versions=ras, environ=off)}


@pytest.mark.parametrize("version", ["", "unknown", "git-9f2c", "\x1b[31m"])
def test_versions_that_are_none(version: str) -> None:
    assert said(software, versions={"nccl": version, "torch": version}) == []


def test_an_etcd_that_loses_data() -> None:
    assert said(software, versions={"etcd": "3.5.2"})[0][:2] == ("V36", "fail")
    assert said(software, versions={"etcd": "3.5.3"}) == []


def test_no_torch() -> None:
    python = "/opt/venv/bin/python"
    assert said(software, python=python) == [("D03", "warn", f"there is no torch for {python}")]
    there = said(software, python=python, versions={"torch": "2.13.0+cpu"})
    assert "D03" not in {row[0] for row in there}
    # It is told once why there is no answer.
    assert said(software, python=python, unknown={"software": "no answer within 1 min"}) == []
    assert said(software) == []


def test_a_torch_that_cannot_be_imported() -> None:
    problem = "exit code 1: ImportError: libcudart.so.12"
    found = said(software, python="py", versions={"torch": "2.8.0"}, torch_problem=problem)
    assert ("D03", "fail", f"py cannot import torch: {problem}") in found


def test_calls_that_the_launcher_needs_and_functions_that_python_lacks() -> None:
    call = "pidfd_open (Linux 5.3): Function not implemented"
    (row,) = said(software, versions={"linux": "5.10.0"}, refused=(call,))
    assert row == ("D04", "fail", f"Linux 5.10.0 refuses {call}")
    (row,) = said(software, lacking=("os.memfd_create", "os.pidfd_open"))
    assert row == ("D05", "info", "this build of Python lacks os.memfd_create, os.pidfd_open")


# --- storage --------------------------------------------------------------------------------------


def trial(**more: Any) -> Trial:
    place = FileSystem(path="/ckpt", **more.pop("place", {"free": 100 * GIB}))
    made = {"written": 64 * MIB, "seconds": 0.1} | more
    return Trial(**{"path": "/ckpt", "purpose": "checkpoints", "file_system": place} | made)


def test_directories() -> None:
    asked = wanting(checkpoint_bytes=10 * GIB)
    (fine,) = said(storage, asked, trials=(trial(),))
    found = "/ckpt (checkpoints): 640 MiB/s written, a checkpoint takes 16.0 s"
    assert fine == ("L21", "info", found)
    (slow,) = said(storage, trials=(trial(seconds=30.0),))
    assert slow == ("L21", "warn", "/ckpt (checkpoints): 2.1 MiB/s written")
    (broken,) = said(storage, trials=(trial(problem="Permission denied"),))
    assert broken == ("L21", "fail", "/ckpt (checkpoints): Permission denied")
    full = trial(place={"free": 20 * GIB, "free_inodes": 5})
    assert [row[1] for row in said(storage, asked, trials=(full,))] == ["fail", "warn", "info"]
    logs = trial(purpose="logs", place={"free": 10 * MIB})
    assert [row[1] for row in said(storage, asked, trials=(logs,))] == ["warn", "info"]
    assert said(storage, trials=(trial(seconds=0.0),)) == []


# --- temporary ------------------------------------------------------------------------------------


def test_temporary_files() -> None:
    def found(**more: Any) -> list[tuple[str, str, str]]:
        return said(temporary, file_systems={"tmp": FileSystem(path="/tmp", **more)})

    assert found(kind="ext4", options=("rw",), free=10 * GIB) == []
    assert found(options=("rw", "noexec"))[0][2] == "/tmp is mounted noexec"
    assert found(kind="nfs4")[0][2] == "/tmp is on a network file system (nfs4)"
    assert found(free=10 * MIB)[0][1] == "warn"
    assert found(free=0)[0][1] == "fail"
    assert found(problem="Read-only file system")[0][1] == "fail"
    caches = {"TORCHINDUCTOR_CACHE_DIR": "/local", "TRITON_CACHE_DIR": "/local"}
    place = FileSystem(path="/tmp", options=("noexec",))
    assert said(temporary, file_systems={"tmp": place}, environ=caches) == []
    assert said(temporary) == []


def test_ipc_that_logind_removes() -> None:
    assert said(temporary, settings={"RemoveIPC": "yes"})[0][:2] == ("L07", "warn")
    assert said(temporary, settings={"RemoveIPC": "no"}) == []


# --- threads --------------------------------------------------------------------------------------


def test_processes_and_threads() -> None:
    few = {"nproc": Limit(1024, 1024)}
    assert said(threads, limits=few) == [("L04", "warn", "ulimit -u is 1024")]
    tight = Cgroup(pids_max=1000, pids_now=900)
    found = said(threads, limits={"nproc": Limit(None, None)}, cgroup=tight)
    assert found == [("L04", "warn", "pids.max of the container is 1000, of which 900 are in use")]
    many = wanting(nproc_per_node=8)
    enough = {"nproc": Limit(8192, 8192)}
    assert said(threads, many, limits=enough) == []
    assert said(threads, many, limits=enough, environ={"OMP_NUM_THREADS": "32"})[0][0] == "L04"


def test_more_threads_than_cpus() -> None:
    asked = wanting(nproc_per_node=4)
    found = said(threads, asked, cpus=16, environ={"OMP_NUM_THREADS": "8"})
    assert found == [("E23", "warn", "OMP_NUM_THREADS=8 with 4 ranks on 16 CPUs")]
    assert said(threads, asked, cpus=32, environ={"OMP_NUM_THREADS": "8"}) == []
    assert said(threads, asked, cpus=2, environ={"OMP_NUM_THREADS": "lots"}) == []


# --- tracing --------------------------------------------------------------------------------------


def test_tracing() -> None:
    for scope, expected in (("0", []), ("1", []), ("2", ["L08"]), ("3", ["L08"]), ("?", [])):
        settings = {"kernel.yama.ptrace_scope": scope}
        assert [row[0] for row in said(tracing, settings=settings)] == expected
    admin = {"settings": {"kernel.yama.ptrace_scope": "2"}, "capabilities": 1 << 19}
    assert said(tracing, **admin) == []


def test_capabilities_of_containers() -> None:
    versions = {"nccl": "2.25.1"}
    bare = {"in_container": True, "capabilities": 0}
    assert [row[0] for row in said(tracing, versions=versions, **bare)] == ["L09"]
    assert said(tracing, versions={"nccl": "2.23.4"}, **bare) == []
    assert said(tracing, versions={}, **bare) == []
    assert said(tracing, versions=versions, in_container=True, capabilities=1 << 23) == []
    assert said(tracing, versions=versions, in_container=True, capabilities=None) == []


# --- unanswered -----------------------------------------------------------------------------------


def test_what_was_not_found_out() -> None:
    found = said(unanswered, unknown={"software": "killed by SIGSEGV"})
    assert found == [("D01", "warn", "software: killed by SIGSEGV")]
