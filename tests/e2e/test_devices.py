"""Device memory and NUMA nodes, with made-up devices."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher, launched
from tests.fault_tolerance.agent.devices import device, devices, provider
from undaunted.base import numa
from undaunted.health import nvml

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

CRASHES_ONCE = """
    import os, signal, sys
    print("round", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)
"""
FREE, FULL = devices(device(mib=10)), devices(device(mib=4096))
RESTART = ("--max-restarts", "1", "--worker-start", "fresh")
needs_numa = pytest.mark.skipif(0 not in numa.nodes(), reason="the kernel has no NUMA nodes")


def times(launcher: Launcher, *kinds: str) -> list[int]:
    """When the first event of each kind was written."""
    return [int(str(launcher.events(kind)[0]["t"])) for kind in kinds]


def test_a_restart_waits_for_device_memory(tmp_path: Path) -> None:
    program = provider(tmp_path, FULL, FULL, FULL, FREE)
    with launched(tmp_path, CRASHES_ONCE, *RESTART, UNDAUNTED_DEVICE_PROVIDER=program) as launcher:
        assert launcher.finish() == 0
        (event,) = launcher.events("memory_reclaimed")
        assert event["devices"] == 1
        assert "held" not in event
        assert int(str(event["duration_ns"])) >= 60e6, "20 and 40 ms between three looks"
        exited, reclaimed, stopped = times(
            launcher, "rank_exited", "memory_reclaimed", "round_stopped"
        )
        assert exited < reclaimed < stopped
        assert "memory" not in launcher.text, "nothing to tell the user"


# One device. For the first looks it lists the process whose number is in the file.
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
static int looks;
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return code ? "error" : "ok"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &looks; return 0; }
int nvmlDeviceGetUUID(void *device, char *name, unsigned size) {
    if (device != &looks) return 2;
    strncpy(name, "GPU-1", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    if (device != &looks || memory->version != (sizeof(Memory) | 2 << 24)) return 25;
    memory->used = 1 << 20;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *table) {
    FILE *file = fopen(getenv("FAKE_NVML_PID"), "r");
    unsigned room = *count;
    *count = 0;
    if (device != &looks || room < 1 || !file) return 2;
    if (++looks < 4 && fscanf(file, "%u", &table[0].pid) == 1) {
        table[0].used = 5ull << 30;
        *count = 1;
    }
    fclose(file);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_provider_for_nvidia_with_a_driver_in_c(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    build = ["cc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "driver.c"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    script = f"""
        import os, sys
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            print(os.getpid(), file=open({str(tmp_path / "pid")!r}, "w"))
            sys.exit(3)
    """
    env = {
        "UNDAUNTED_DEVICE_PROVIDER": nvml.__file__,
        "LD_LIBRARY_PATH": str(tmp_path),
        "FAKE_NVML_PID": str(tmp_path / "pid"),
    }
    with launched(tmp_path, script, *RESTART, **env) as launcher:
        assert launcher.finish() == 0
        (event,) = launcher.events("memory_reclaimed")
        assert (event["devices"], event["pids"]) == (1, [int((tmp_path / "pid").read_text())])
        assert not {"held", "skipped"} & set(event)


def test_memory_that_stays_in_use_delays_a_restart_and_no_more(tmp_path: Path) -> None:
    options = (*RESTART, "--ft-gpu-memory-reclaim-timeout", "0.3")
    program = provider(tmp_path, FULL)
    with launched(tmp_path, CRASHES_ONCE, *options, UNDAUNTED_DEVICE_PROVIDER=program) as launcher:
        assert launcher.finish() == 0
        launcher.wait_for(r"device memory is not free \d+ ms after round 0: GPU 0: 4096 MiB in use")
        assert launcher.text.count("round 1") == 1


def test_a_driver_that_hangs_does_not_stop_the_job_from_ending(tmp_path: Path) -> None:
    program = provider(tmp_path, "hang")
    with launched(tmp_path, CRASHES_ONCE, *RESTART, UNDAUNTED_DEVICE_PROVIDER=program) as launcher:
        launcher.wait_for(r"exited with code 3")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75


def test_nothing_is_waited_for_when_no_restart_follows(tmp_path: Path) -> None:
    program = provider(tmp_path, "hang")
    with launched(tmp_path, CRASHES_ONCE, UNDAUNTED_DEVICE_PROVIDER=program) as launcher:
        assert launcher.finish() == 1
        assert launcher.events("memory_reclaimed") == []


BOUND = r"""
    import os, torch
    policy = open("/proc/self/numa_maps").readline().split()[1]
    cpus = sorted(os.sched_getaffinity(0))
    os.write(1, f"{os.environ['LOCAL_RANK']} {policy} {cpus}\n".encode())  # in one piece
"""


@needs_numa
@pytest.mark.parametrize("mode", ["warm", "fresh"])
@pytest.mark.parametrize(("strict", "policy"), [("true", "bind:0"), ("false", "local")])
def test_ranks_are_bound_to_their_numa_node(
    tmp_path: Path, mode: str, strict: str, policy: str
) -> None:
    options = ("--nproc-per-node", "2", "--worker-start", mode, "--ft-numa-bind-strict", strict)
    cpus = sorted(numa.cpus(0) & os.sched_getaffinity(0))
    script = BOUND if mode == "warm" else BOUND.replace(", torch", "")
    with launched(tmp_path, script, *options, NVRX_GPUS_PER_NUMA="8") as launcher:
        assert launcher.finish() == 0
        assert {f"0 {policy} {cpus}", f"1 {policy} {cpus}"} <= set(launcher.seen)
        assert launcher.events("workers_spawned")[0]["mode"] == mode


@needs_numa
def test_a_numa_node_that_does_not_exist_is_said_before_anything_starts(tmp_path: Path) -> None:
    absent = max(numa.nodes()) + 1
    options = ("--nproc-per-node", str(absent + 1))
    with launched(tmp_path, BOUND, *options, NVRX_GPUS_PER_NUMA="1") as launcher:
        assert launcher.finish() == 2
        assert f"there is no NUMA node {absent} here" in launcher.text


@needs_numa
def test_programs_are_bound_by_numactl(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    command = ["--run-dir", "run", "--no-python", "echo", "hello"]
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NVRX_GPUS_PER_NUMA": "4"}
    if not any(os.access(f"{folder}/numactl", os.X_OK) for folder in ("/usr/bin", "/bin")):
        launcher = Launcher(command, tmp_path, path)
        assert launcher.finish() == 2
        assert "takes the program numactl, which is not found" in launcher.text
        launcher.close()
    numactl = tmp_path / "bin" / "numactl"
    numactl.write_text('#!/bin/sh\necho "numactl $@"\nshift 2\nexec "$@"\n')
    numactl.chmod(0o700)
    launcher = Launcher(command, tmp_path, path)
    assert launcher.finish() == 0
    assert {"numactl --cpunodebind=0 --membind=0 echo hello", "hello"} <= set(launcher.seen)
    launcher.close()
