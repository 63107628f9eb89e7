"""Which NUMA node each rank is bound to: `gpus_per_numa` ranks to each, in order."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from undaunted.base import numa

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from undaunted.fault_tolerance.run_config import RunConfig

NOT_BOUND = -1
_NUMACTL = "numactl"


def node_of(config: RunConfig, local_rank: int) -> int:
    """The NUMA node of a rank, NOT_BOUND if it may run anywhere."""
    return local_rank // config.gpus_per_numa if config.gpus_per_numa else NOT_BOUND


def numactl(node: int, *, strict: bool) -> list[str]:
    """The beginning of a command line that binds a program to ``node``."""
    memory = f"--membind={node}" if strict else "--localalloc"
    return [_NUMACTL, f"--cpunodebind={node}", memory]


def problem(config: RunConfig, environ: Mapping[str, str], root: Path = numa.NODES) -> str:
    """Return why the ranks cannot be bound as the settings want it, "" if they can.

    Only for a run with ``gpus_per_numa``.

    Args:
        config: the run.
        environ: of the ranks.
        root: where the kernel describes the nodes.
    """
    if config.kind == "program" and shutil.which(_NUMACTL, path=environ.get("PATH")) is None:
        return (
            "NVRX_GPUS_PER_NUMA with --no-python takes the program numactl, which is not found; "
            "install it, or unset the variable"
        )
    node = 0
    try:
        for node in range(node_of(config, config.nproc_per_node - 1) + 1):
            numa.try_bind(node, strict=config.numa_bind_strict, root=root)
    except numa.NumaError as error:
        return (
            f"NVRX_GPUS_PER_NUMA={config.gpus_per_numa} binds local rank "
            f"{node * config.gpus_per_numa} to NUMA node {node}: {error}"
        )
    return ""
