"""The launchers that are compared, and how each is called."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.nvidia import has_nvrx

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Job:
    """What a launcher is asked to run.

    Attributes:
        script: path of the workload.
        ranks: number of local ranks.
        restarts: how often the job may be restarted.
        limit_s: limit between heartbeats, None = none asked for.
    """

    script: Path
    ranks: int
    restarts: int = 0
    limit_s: float | None = None


@dataclass(frozen=True)
class Launcher:
    """One launcher: its name in tables and how to call it."""

    name: str
    command: Callable[[Job], list[str]]
    detects_hangs: bool = True
    env: dict[str, str] = field(default_factory=dict)


def available() -> list[Launcher]:
    """Return the launchers this interpreter can run; the first is ours."""
    found = [
        Launcher("undaunted", undaunted_command, env={"PYTHONPATH": source_path()}),
        Launcher("torchrun", torchrun_command, detects_hangs=False),
    ]
    if has_nvrx():
        # Outside Slurm its version 0.5 refuses to start without GROUP_RANK.
        found.append(Launcher("nvrx", nvrx_command, env={"GROUP_RANK": "0"}))
    return found


def undaunted_command(job: Job) -> list[str]:
    command = [sys.executable, "-m", "undaunted.cli.main", "run", *common_options(job)]
    if job.limit_s is not None:
        command.append(f"--ft-rank-heartbeat-timeout={job.limit_s}")
    return [*command, str(job.script)]


def torchrun_command(job: Job) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, *common_options(job), str(job.script)]


def nvrx_command(job: Job) -> list[str]:
    command = [sys.executable, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *common_options(job)]
    if job.limit_s is not None:
        command += [
            f"--ft-rank-heartbeat-timeout={job.limit_s}",
            "--ft-initial-rank-heartbeat-timeout=60",
        ]
    return [*command, str(job.script)]


def common_options(job: Job) -> list[str]:
    return [f"--nproc-per-node={job.ranks}", f"--max-restarts={job.restarts}"]


def source_path() -> str:
    """Return a PYTHONPATH with which undaunted is found from any directory."""
    spec = importlib.util.find_spec("undaunted")
    if spec is None or spec.origin is None:
        raise SystemExit("undaunted is not importable: install it, or set PYTHONPATH=src")
    before = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [str(Path(spec.origin).parents[1]), before]))
