"""The environment of a worker: torchrun's contract, and what undaunted adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.coordinator import epoch
from undaunted.coordinator.wire import credentials
from undaunted.fault_tolerance import cycle_info_place
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.coordinator.core.messages import Start
    from undaunted.fault_tolerance.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class RankPlace:
    """What differs from rank to rank."""

    local_rank: int
    page: str  # value of UNDAUNTED_PAGE
    error_file: str  # "" = none
    guard: str = ""  # value of UNDAUNTED_INPROCESS


def shared_environment(inherited: Mapping[str, str], nproc_per_node: int) -> dict[str, str]:
    """What the environments of all ranks of the node have in common."""
    env = dict(inherited)
    env.pop("UNDAUNTED_FAULTS", None)
    for secret in (credentials.TOKEN_VARIABLE, TOKEN_VARIABLE):  # what launchers know each other by
        env.pop(secret, None)
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if nproc_per_node > 1:
        # As torchrun does: N ranks with a thread per core each would fight for the cores.
        env.setdefault("OMP_NUM_THREADS", "1")
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
    rank = start.first_rank + place.local_rank
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
        "UNDAUNTED_INPROCESS": place.guard,
        epoch.VARIABLE: str(epoch.number(start.epoch, start.round)),
    }
    if config.virtual_local_rank:
        env |= _alone(shared.get("CUDA_VISIBLE_DEVICES"), place.local_rank)
    if config.cycle_info is not None:
        env[cycle_info_place.VARIABLE] = config.cycle_info.current
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
