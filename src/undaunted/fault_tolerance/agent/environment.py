"""The place of each rank: its environment (torchrun's contract, and ours), its NUMA node.

`gpus_per_numa` ranks are bound to each NUMA node, in order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.cgroups import cpu_quota
from undaunted.base.ids import NODE_VARIABLE
from undaunted.checkpointing.format.ledger import FAILURE_VARIABLE, WITHIN_VARIABLE
from undaunted.coordinator import epoch
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE
from undaunted.fault_tolerance.run_config import CYCLE_INFO_VARIABLE, SCRIPT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from undaunted.coordinator.policy.messages import Start
    from undaunted.fault_tolerance.run_config import RunConfig

# What launchers know each other by. The first as in `coordinator.wire.credentials`, which imports
# ssl: this file is imported before the template starts, which is what a user waits for.
SECRETS = ("UNDAUNTED_TOKEN", TOKEN_VARIABLE)
NOT_BOUND = -1
_RECORDED = "2000"  # operations
_NUMACTL = "numactl"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The values that differ from rank to rank."""

    local_rank: int
    page: str  # value of UNDAUNTED_PAGE
    error_file: str  # "" = none
    guard: str = ""  # value of UNDAUNTED_INPROCESS
    recordings: str = ""  # value of UNDAUNTED_RECORDINGS


def shared_environment(
    inherited: Mapping[str, str], nproc_per_node: int, *, flight_recorder: bool = False
) -> dict[str, str]:
    """Return what the environments of all ranks of the node have in common."""
    env = dict(inherited)
    for name in ("UNDAUNTED_FAULTS", SCRIPT_VARIABLE, FAILURE_VARIABLE):
        env.pop(name, None)
    for secret in SECRETS:
        env.pop(secret, None)
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    # The older name, of which torch warns. Newer versions record where neither is set.
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in env:
        env.setdefault("TORCH_FR_BUFFER_SIZE", _RECORDED if flight_recorder else "0")
    if nproc_per_node > 1:
        # As torchrun does: N ranks with a thread per core each would fight for the cores.
        env.setdefault("OMP_NUM_THREADS", "1")
    elif (quota := cpu_quota()) is not None and quota < len(os.sched_getaffinity(0)):
        # Libraries count the CPUs of the machine; more threads than time for them are held up.
        env.setdefault("OMP_NUM_THREADS", str(quota))
    return env


def worker_environment(
    shared: Mapping[str, str],
    config: RunConfig,
    start: Start,
    place: RankPlace,
    *,
    faults: str = "",
) -> dict[str, str]:
    """The complete environment of one rank, beginning from `shared_environment`."""
    rank = start.rank(place.local_rank)
    env = dict(shared)
    env |= {
        "LOCAL_RANK": str(place.local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(start.group_rank),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": config.role,
        "LOCAL_WORLD_SIZE": str(start.slots),
        "WORLD_SIZE": str(start.world_size),
        "GROUP_WORLD_SIZE": str(start.group_world_size),
        "ROLE_WORLD_SIZE": str(start.world_size),
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": str(start.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(start.round),
        "TORCHELASTIC_MAX_RESTARTS": str(start.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        # Rank 0 opens the store itself; the agent only keeps its port free.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": place.error_file,
        "UNDAUNTED_PAGE": place.page,
        # Programs of NVRx ask whether these are set. Nobody listens there: ranks have their page.
        "FT_LAUNCHER_IPC_SOCKET": f"{config.run_dir}/launcher.socket",
        "FT_RANK_MONITOR_IPC_SOCKET": f"{config.run_dir}/rank-{place.local_rank}.socket",
        "UNDAUNTED_RUN_DIR": config.run_dir,
        NODE_VARIABLE: config.node,
        "UNDAUNTED_INPROCESS": place.guard,
        "UNDAUNTED_RECORDINGS": place.recordings,
        epoch.VARIABLE: str(epoch.number(start.epoch, start.round)),
        WITHIN_VARIABLE: str(0 if config.no_checkpoint_fallback else config.suspect_steps),
    }
    if start.failure:
        env[FAILURE_VARIABLE] = start.failure
    if config.virtual_local_rank:
        env |= _alone(shared.get("CUDA_VISIBLE_DEVICES"), place.local_rank)
    if config.cycle_info is not None:
        env[CYCLE_INFO_VARIABLE] = config.cycle_info.current
    if config.node_health_socket:
        env["UNDAUNTED_NODE_HEALTH_CHECK_ENDPOINT"] = config.node_health_socket
    if faults:
        env["UNDAUNTED_FAULTS"] = faults
    if not place.error_file:
        del env["TORCHELASTIC_ERROR_FILE"]
    return env


def _alone(devices: str | None, local_rank: int) -> dict[str, str]:
    """What makes a rank believe that it is the only one of its node, and has one device."""
    own = str(local_rank) if devices is None else devices.split(",")[local_rank].strip()
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": own}


def numa_node_of(config: RunConfig, local_rank: int) -> int:
    """The NUMA node of a rank, NOT_BOUND if it may run anywhere."""
    return local_rank // config.gpus_per_numa if config.gpus_per_numa else NOT_BOUND


def numactl(node: int, *, strict: bool) -> list[str]:
    """The beginning of a command line that binds a program to ``node``."""
    memory = f"--membind={node}" if strict else "--localalloc"
    return [_NUMACTL, f"--cpunodebind={node}", memory]


def numa_problem(config: RunConfig, environ: Mapping[str, str], root: Path | None = None) -> str:
    """Return why the ranks cannot be bound as the settings want it, "" if they can.

    Only for a run with ``gpus_per_numa``.

    Args:
        config: the run.
        environ: of the ranks.
        root: where the kernel describes the nodes; None = `numa.NODES`.
    """
    import shutil  # seldom needed, and slow to import

    from undaunted.base import numa

    if config.kind == "program" and shutil.which(_NUMACTL, path=environ.get("PATH")) is None:
        return (
            "NVRX_GPUS_PER_NUMA with --no-python takes the program numactl, which is not found; "
            "install it, or unset the variable"
        )
    node = 0
    try:
        for node in range(numa_node_of(config, config.nproc_per_node - 1) + 1):
            numa.try_bind(node, strict=config.ft.numa_bind_strict, root=root or numa.NODES)
    except numa.NumaError as error:
        return (
            f"NVRX_GPUS_PER_NUMA={config.gpus_per_numa} binds local rank "
            f"{node * config.gpus_per_numa} to NUMA node {node}: {error}"
        )
    return ""
