"""The checks that need a GPU. Each runs in a process of its own; torch is imported inside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu import training_rows
from tests.gpu.row import NotShown, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RUN_S = 80.0  # for one `undaunted run`
_MIB = 1 << 20


# --- the driver ----------------------------------------------------------------------------------


def nvml(_folder: Path) -> str:
    """What the launcher reads from the driver's library is so."""
    import torch

    from undaunted.health import device_memory
    from undaunted.health.nvml import Nvml

    held = torch.ones(256 * _MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    line = json.dumps({"devices": Nvml().devices()}).encode()
    devices = device_memory.visible(device_memory.decode(line).devices, os.environ)
    assert len(devices) == torch.cuda.device_count(), devices
    first = devices[0]
    assert not first.problem, first.problem
    assert first.used is None or first.used >= held.numel(), first
    listed = "lists" if os.getpid() in first.pids() else "does not list"
    used = "unknown" if first.used is None else f"{first.used // _MIB} MiB"
    return f"{len(devices)} GPU(s), {used} in use, the driver {listed} this process"


def health(_folder: Path) -> str:
    """The checks of a node before a round, and those of in-process restart, find nothing wrong."""
    from undaunted.health.checks.gpu import Gpus
    from undaunted.inprocess.health_check import ChainedGPUHealthCheck, CudaHealthCheck
    from undaunted.inprocess.state import State

    finding = Gpus(os.environ.get("CUDA_VISIBLE_DEVICES")).run({})
    assert finding is None or not finding.failed, finding
    import torch

    torch.ones(1, device="cuda")
    state: Any = State(rank=0, world_size=1)
    CudaHealthCheck(timedelta(seconds=20))(state)
    ChainedGPUHealthCheck(0)(state)
    return "the driver answers and wants nothing done"


def counters(_folder: Path) -> str:
    """Uncorrected memory errors are counted, and the kernel's log is searched for Xid errors."""
    from undaunted.health.checks.ecc import GpuMemory
    from undaunted.health.checks.kernel_log import KernelLog

    told = []
    for check in (GpuMemory(), KernelLog("/")):
        seen: dict[str, Any] = {}
        for _ in range(2):  # the first look notes what is of others
            finding = check.run(seen)
            assert finding is None or not finding.failed, (check.name, finding)
        told.append(f"{check.name}: {finding.text if finding else seen}")
    return "; ".join(told)


def nvrx_checks(folder: Path) -> str:
    """The eight health checks of NVRx's names find nothing wrong with a good node."""
    import torch

    sys.path.append(str(Path(__file__).parents[2] / "compat/nvidia-resiliency-ext/src"))
    from nvidia_resiliency_ext.shared_utils import health_check as checks

    torch.ones(1, device="cuda")
    there = [
        checks.GPUHealthCheck(device_index=0),
        checks.NVLHealthCheck(device_index=0),
        checks.NVLinkWindowHealthCheck(device_index=0),
        checks.NicHealthCheck(device_index=0),
        checks.NicLinkStateHealthCheck(device_index=0),
        checks.NodeHealthCheck(),
        checks.DistributedStorageHealthCheck(),
        checks.StoragePathHealthCheck([str(folder)]),
    ]
    for _ in range(2):
        unwell = [type(check).__name__ for check in there if not check()]
        assert not unwell, unwell
    return f"{len(there)} checks, twice"


def numa(_folder: Path) -> str:
    """The GPU's node is known, and a process can be kept on it."""
    import torch

    from undaunted.base import numa as nodes

    properties = torch.cuda.get_device_properties(0)
    if not hasattr(properties, "pci_bus_id"):
        raise NotShown("this torch does not say where on the bus a GPU is")
    domain = getattr(properties, "pci_domain_id", 0)
    name = f"{domain:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    try:
        node = int(Path("/sys/bus/pci/devices", name, "numa_node").read_text())
    except OSError:
        raise NotShown(f"the kernel does not show the device {name} here") from None
    there = nodes.nodes()
    if node < 0 or len(there) < 2:
        raise NotShown(f"the GPU is of node {node}, there are {len(there)} nodes")
    try:
        usable = nodes.bind(node, strict=True)
    except nodes.NumaError as error:
        raise NotShown(str(error)) from None
    assert os.sched_getaffinity(0) == usable
    return f"GPU 0 is near node {node} of {len(there)}; bound to its {len(usable)} CPUs"


# --- the launcher --------------------------------------------------------------------------------


def run(
    folder: Path,
    script: str,
    *options: str,
    code: int = 0,
    arguments: Sequence[str] = (),
    **env: str,
) -> list[dict[str, Any]]:
    """Run a script with `undaunted run`; return the events of its journal.

    Raises:
        AssertionError: it did not end with this code.
    """
    (folder / "train.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "undaunted.cli.main", "run", "--run-dir", "run", *options]
    done = subprocess.run(
        [*command, "train.py", *arguments],
        cwd=folder,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_RUN_S,
    )
    print(done.stdout)
    assert done.returncode == code, f"exit {done.returncode}: {done.stdout[-400:]}"
    (journal,) = (folder / "run").glob("journal-*.jsonl")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def _of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def warm_workers(folder: Path) -> str:
    """Workers forked from a process that has imported torch use CUDA, also after a restart."""
    script = """
        import os, sys
        import torch
        assert not torch.cuda.is_initialized(), "the template has initialised CUDA"
        total = torch.ones(1000, device="cuda").sum().item()
        assert total == 1000, total
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit("once more")
    """
    events = run(folder, script, "--max-restarts", "1")
    modes = [event["mode"] for event in _of(events, "workers_spawned")]
    assert modes == ["warm", "warm"], (modes, _of(events, "template_lost"))
    return "two rounds, both forked"


def memory_reclaim(folder: Path) -> str:
    """A restart waits until the memory of a killed rank is free."""
    script = """
        import os, signal
        import torch
        free, total = torch.cuda.mem_get_info()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            held = torch.ones(int(free * 0.8), dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            os.kill(os.getpid(), signal.SIGKILL)
        assert free > total * 0.7, (free, total)
    """
    events = run(folder, script, "--max-restarts", "1")
    (reclaimed,) = _of(events, "memory_reclaimed")
    assert not reclaimed.get("held"), reclaimed
    assert not reclaimed.get("skipped"), reclaimed
    assert reclaimed["devices"] >= 1, reclaimed
    listed = len(reclaimed.get("pids", []))
    return f"waited {reclaimed['duration_ns'] / 1e6:.0f} ms; {listed} ended process(es) were listed"


def blocked_stream(folder: Path) -> str:
    """A stream that never gets done is a hang: noticed, explained, and survived."""
    script = """
        import os
        import torch
        import undaunted
        def wait_for_the_gpu():
            torch.cuda._sleep(10**13)  # cycles: more than an hour
            torch.cuda.synchronize()
        for step in range(8):
            undaunted.step(step)
            torch.ones(1, device="cuda").item()
            if step == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                wait_for_the_gpu()
    """
    events = run(folder, script, "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "5")
    (verdict,) = _of(events, "verdict")
    seen = (verdict["kind"], verdict["rank"], verdict["iteration"])
    assert seen == ("hang", 0, 5), verdict
    assert "device synchronization" in verdict["line"], verdict["line"]
    (stacks,) = (folder / "run").glob("stacks-*.txt")
    assert "wait_for_the_gpu" in stacks.read_text(), stacks.read_text()
    return str(verdict["line"])


# --- in-process restart --------------------------------------------------------------------------


def _alone() -> None:
    """Be the only rank of a job."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def nccl_in_process(_folder: Path) -> str:
    """A group of NCCL is aborted and made anew, three times, in one process."""
    _alone()
    import torch
    import torch.distributed as dist

    from undaunted import inprocess

    began: list[float] = []
    failed: list[float] = []

    @inprocess.Wrapper(
        initialize=inprocess.initialize.RetryController(max_iterations=5),
        health_check=inprocess.health_check.CudaHealthCheck(timedelta(seconds=20)),
        max_identical_faults=None,
    )
    def train(call: inprocess.CallWrapper) -> float:
        began.append(time.monotonic())
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", store=call.store, rank=0, world_size=1)
        numbers = torch.ones(1000, device="cuda")
        dist.all_reduce(numbers)
        total = float(numbers.sum().item())
        if len(began) < 4:
            failed.append(time.monotonic())
            raise RuntimeError("once more")
        dist.destroy_process_group()
        return total

    assert train() == 1000.0
    took = [next_ - end for next_, end in zip(began[1:], failed, strict=True)]
    return "from a failure to the next call: " + ", ".join(f"{one * 1000:.0f} ms" for one in took)


# --- checkpoints ---------------------------------------------------------------------------------


def pinned_staging(_folder: Path) -> str:
    """An arena is pinned, and copies into it are what was on the GPU."""
    import torch

    from undaunted.checkpointing.memory.arena import HEADER_BYTES, Arena
    from undaunted.checkpointing.memory.copy import copy_into, view_of, warm_up

    source = torch.randint(0, 255, (1024 * _MIB,), dtype=torch.uint8, device="cuda")
    arena = Arena.create("gpu", HEADER_BYTES + source.numel())
    try:
        warm_up(arena)
        there = view_of(arena, HEADER_BYTES, torch.uint8, source.shape)
        assert there.is_pinned(), "the arena's memory is not pinned"
        took = []
        for _ in range(3):
            arena.begin()
            began = time.perf_counter()
            copy_into([there], [source], arena)
            took.append(time.perf_counter() - began)
        assert torch.equal(there, source.cpu())
        del there
    finally:
        arena.close()
    return f"1 GiB to the host at {1.0737 / min(took):.1f} GB/s"


def _trained(device: str) -> Any:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(8, 64, device=device)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer, "epoch": 3}


def dcp(folder: Path) -> str:
    """`Checkpointer` saves a state on the GPU, loads it to there, and torch reads it as well."""
    import torch
    import torch.distributed.checkpoint as torch_dcp

    from undaunted.checkpointing import Checkpointer

    state = _trained("cuda")
    saved = {name: value.clone() for name, value in state["model"].state_dict().items()}
    checkpoints = Checkpointer(folder / "checkpoints")
    try:
        checkpoints.save(3, state)
        with torch.no_grad():  # the content is fixed: training goes on at once
            for parameter in state["model"].parameters():
                parameter.zero_()
        checkpoints.wait()
        fresh = _trained("cuda")
        fresh["epoch"] = 0
        with torch.no_grad():
            for parameter in fresh["model"].parameters():
                parameter.zero_()
        assert checkpoints.load(fresh) == 3
    finally:
        checkpoints.close()
    for name, value in fresh["model"].state_dict().items():
        assert value.is_cuda, name
        assert torch.equal(value, saved[name]), name
    assert fresh["epoch"] == 3
    read = {"model": {name: torch.zeros_like(value) for name, value in saved.items()}}
    (step,) = (folder / "checkpoints").rglob("step-00000003")
    torch_dcp.load(read, checkpoint_id=step)
    assert all(torch.equal(read["model"][name], value) for name, value in saved.items())
    return f"{len(saved)} tensors of the model and AdamW's state"


def ordered_save(folder: Path) -> str:
    """`save` returns while the GPU still computes; what comes next on the stream harms nothing."""
    import torch

    from undaunted.checkpointing import Checkpointer

    value = torch.zeros(64 * _MIB, device="cuda")
    checkpoints = Checkpointer(folder / "checkpoints")
    try:
        checkpoints.save(0, {"value": value})  # plans, and makes the memory
        checkpoints.wait()
        torch.cuda._sleep(4 * 10**9)  # cycles: some seconds
        value.fill_(1)
        began = time.perf_counter()
        checkpoints.save(1, {"value": value})
        took = time.perf_counter() - began
        busy = not torch.cuda.current_stream().query()
        value.fill_(2)
        checkpoints.wait()
        fresh = {"value": torch.zeros_like(value)}
        assert checkpoints.load(fresh) == 1
    finally:
        checkpoints.close()
    assert busy, "the save has waited for the GPU"
    assert torch.equal(fresh["value"], torch.ones_like(value)), "not what it was at the save"
    return f"256 MiB behind a busy stream: the save took {took * 1e3:.1f} ms"


def dcp_sharded(folder: Path) -> str:
    """The same with the parameters of `fully_shard` on a mesh of one GPU."""
    _alone()
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from undaunted.checkpointing import Checkpointer

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (1,))

    def made() -> dict[str, Any]:
        model = fully_shard(torch.nn.Linear(64, 64, device="cuda"), mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    state, fresh = made(), made()
    checkpoints = Checkpointer(folder / "checkpoints")
    try:
        checkpoints.save(1, state)
        checkpoints.wait()
        assert checkpoints.load(fresh) == 1
    finally:
        checkpoints.close()
    for one, other in zip(state["model"].parameters(), fresh["model"].parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())
    dist.destroy_process_group()
    return "DTensors on cuda, saved and loaded"


def async_ckpt(folder: Path) -> str:
    """`TorchAsyncCheckpoint` copies tensors of the GPU before it returns."""
    import torch

    from undaunted.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

    value = torch.arange(1_000_000, device="cuda")
    expected = value.cpu()
    saving = TorchAsyncCheckpoint()
    saving.async_save({"value": value}, folder / "state.pt")
    value.zero_()
    saving.finalize_async_save(blocking=True)
    saving.close()
    loaded = torch.load(folder / "state.pt", weights_only=True)
    assert torch.equal(loaded["value"].cpu(), expected)
    return "content fixed when the call returns"


def digests(_folder: Path) -> str:
    """A tensor has the same digest on the GPU as on the CPU."""
    import torch

    from undaunted.digests.state import digest_of, module_parts

    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
    for kind in kinds:
        here = torch.arange(300_007).to(kind)
        for one in (here, here[3::5]):
            assert digest_of(one.cuda()) == digest_of(one), kind
    model = _trained("cuda")["model"]
    assert module_parts(model) == module_parts(model.cpu())
    return f"{len(kinds)} types, also with strides; a model with buffers"


# --- the training loop ---------------------------------------------------------------------------


def recordings(_folder: Path) -> str:
    """What the recorder of NCCL holds is read: collectives that ended, and one that waits."""
    _alone()
    return training_rows.recordings("cuda")


def session_stops(folder: Path) -> str:
    """Ranks with NCCL stop after one iteration."""
    import torch

    return training_rows.stops(folder, "cuda", run, torch.cuda.device_count())


def job(folder: Path) -> str:
    """A GPT of 320 M parameters that is killed comes to the parameters of one that was not."""
    return training_rows.job(folder, "cuda", run, width=1024, layers=24)


def _on_cuda(check: Callable[[str], str]) -> Callable[[Path], str]:
    return lambda _folder: check("cuda")


# --- what one GPU does not show ------------------------------------------------------------------


def _several(_folder: Path) -> str:
    raise NotShown("not shown on one GPU")


ROWS = (
    Row("nvml", "the driver's library is read as it is", nvml),
    Row("health", "the health checks of a good GPU find nothing", health),
    Row("counters", "memory errors and Xid errors are read", counters),
    Row("nvrx-checks", "NVRx's health checks find nothing", nvrx_checks),
    Row("numa", "a process is kept on the GPU's NUMA node", numa, 30.0),
    Row("warm-workers", "forked workers use CUDA", warm_workers, 90.0),
    Row("memory-reclaim", "a restart waits for the GPU's memory", memory_reclaim, 90.0),
    Row("blocked-stream", "a stream that blocks is a hang", blocked_stream, 90.0),
    Row("nccl-in-process", "NCCL: init, abort, init again", nccl_in_process, 90.0),
    Row("pinned-staging", "copies into a pinned arena", pinned_staging),
    Row("dcp", "checkpoints of a state on the GPU", dcp),
    Row("ordered-save", "a save does not wait for the GPU", ordered_save, 60.0),
    Row("dcp-sharded", "checkpoints of fully_shard on the GPU", dcp_sharded),
    Row("async-ckpt", "torch.save beside training", async_ckpt),
    Row("digests", "digests of CUDA tensors", digests),
    Row("recordings", "what NCCL's recorder holds is read", recordings),
    Row("session-stops", "ranks with NCCL stop together", session_stops, 90.0),
    Row("job", "a killed job comes to the same parameters", job, 170.0),
    Row("generators", "random numbers come again", _on_cuda(training_rows.generators)),
    Row("second-opinion", "a flipped bit is found odd", _on_cuda(training_rows.second_opinion)),
    Row("replay", "steps that run twice", _on_cuda(training_rows.replay)),
    Row("replicas", "digests of replicas", _on_cuda(training_rows.replica_digests)),
    Row("cost-of-checks", "what a check costs", _on_cuda(training_rows.cost_of_checks)),
    Row("nccl-peer-lost", "a rank waits in NCCL for one that died", _several, needs_several=True),
    Row("nvlink", "a lost NVLink is noticed", _several, needs_several=True),
    Row("gpus-of-ranks", "each rank has its own GPU and NUMA node", _several, needs_several=True),
)
