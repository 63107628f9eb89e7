"""How the agent begins: with the template, before anything that takes long to import.

The template needs a second for torch. What the agent itself needs is imported meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.fault_tolerance.agent.environment import shared_environment
from undaunted.fault_tolerance.agent.stack_pipes import StackPipes
from undaunted.fault_tolerance.worker.preload import template_modules
from undaunted.fault_tolerance.worker.spawner import Spawner
from undaunted.progress.area import PageArea

if TYPE_CHECKING:
    import socket

    from undaunted.fault_tolerance.run_config import RunConfig


@dataclass(frozen=True)
class Begun:
    """What exists when the agent's loop begins; `Agent` owns it from then on."""

    area: PageArea
    pipes: StackPipes
    spawner: Spawner
    environment: dict[str, str]  # what the environments of all ranks have in common


def run_agent(config: RunConfig, front: socket.socket) -> int:
    """Run the job; return the launcher's exit code. Called in the forked agent process."""
    process.become_subreaper()
    begun = _begin(config)
    from undaunted.fault_tolerance.agent.agent import serve

    return serve(config, front, begun)


def _begin(config: RunConfig) -> Begun:
    area = PageArea.create(config.nproc_per_node)
    pipes = StackPipes(config.nproc_per_node)
    spawner = Spawner(
        python=config.python,
        warm=config.worker_start == "warm" and config.kind != "program",
        pass_fds=(*area.fds(), *pipes.write),
    )
    # A variable that is read when a process starts must be as in the workers' environments: workers
    # for which it differs cannot be forked from the template.
    environment = shared_environment(os.environ, config.nproc_per_node)
    modules = template_modules(config.kind, config.target, config.cwd, config.preload)
    spawner.prepare(environment, modules, (config.target, *config.args))
    return Begun(area, pipes, spawner, environment)
