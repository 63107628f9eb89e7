"""The agent begins: with the template, before anything that takes long to import.

The template needs a second for torch. What the agent itself needs is imported meanwhile.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.descriptors import move_high
from undaunted.base.text import count, one_line
from undaunted.fault_tolerance.agent.begun import Begun, StackPipes
from undaunted.fault_tolerance.agent.environment import numa_problem, shared_environment
from undaunted.fault_tolerance.output.lines import ERROR
from undaunted.fault_tolerance.run_lock import NO_LOCKS
from undaunted.fault_tolerance.worker.preload import LATER, template_modules
from undaunted.fault_tolerance.worker.prologue import Prologue, read_prologue
from undaunted.fault_tolerance.worker.spawner import Spawner
from undaunted.progress.area import PageArea

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from undaunted.fault_tolerance.pulse import Pulse
    from undaunted.fault_tolerance.run_config import RunConfig

_CANNOT_START = 2
# Of the agent: page, mailbox, stacks, output, guard of each rank; its own files and sockets.
_FDS_PER_RANK = 11
_FDS_BESIDES = 50
_LONGEST = 90  # of a reason in a line


def run_agent(config: RunConfig, front: socket.socket, pulse: Pulse | None, lock: int) -> int:
    """Run the job; return the launcher's exit code. Called in the forked agent process.

    Ranks keep the lock as well: one that outlives its launcher may write, so nobody begins then.
    """
    process.become_subreaper()
    if config.gpus_per_numa and (problem := numa_problem(config, os.environ)):
        config.lines.show(problem, level=ERROR)
        return _CANNOT_START
    try:
        metrics = _listen(config)
    except OSError as error:
        config.lines.show(error.strerror or str(error), level=ERROR)
        return _CANNOT_START
    try:
        begun = replace(_begin(config, metrics, lock), pulse=pulse)
    except OSError as error:
        config.lines.show(_cannot_start(config, error), level=ERROR)
        return _CANNOT_START
    from undaunted.fault_tolerance.agent.agent import serve

    return serve(config, front, begun)


def _listen(config: RunConfig) -> socket.socket | None:
    if config.metrics is None:
        return None
    from undaunted.fault_tolerance.metrics_config import listen

    return listen(config.metrics)


def _cannot_start(config: RunConfig, error: OSError) -> str:
    ranks = count(config.nproc_per_node, "rank")
    what = f"{ranks} cannot be started: {process.refusal(error)}"
    if error.errno in (errno.EMFILE, errno.ENFILE) and config.nproc_per_node > 1:
        what += "; or lower --nproc-per-node"
    return f"{what}: {error.filename}" if error.filename else what


def _begin(config: RunConfig, metrics: socket.socket | None, lock: int) -> Begun:
    needed = _FDS_BESIDES + _FDS_PER_RANK * config.nproc_per_node
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        raise OSError(errno.EMFILE, f"that takes {needed} file descriptors")
    area = PageArea.create(config.nproc_per_node)
    pipes = StackPipes(config.nproc_per_node)
    signals = StackPipes(config.nproc_per_node, resource.getpagesize())
    locks = () if lock == NO_LOCKS else (move_high(lock),)
    spawner = Spawner(
        python=config.python,
        warm=config.worker_start == "warm" and config.kind != "program",
        pass_fds=(*area.fds(), *pipes.write, *signals.write, *locks),
    )
    # A variable that is read when a process starts must be as in the workers' environments: workers
    # for which it differs cannot be forked from the template.
    environment = shared_environment(
        os.environ, config.nproc_per_node, flight_recorder=config.flight_recorder == "on"
    )
    _prepare(config, spawner, environment)
    return Begun(area, pipes, signals, spawner, environment, metrics)


def _prepare(config: RunConfig, spawner: Spawner, environment: Mapping[str, str]) -> None:
    """Start the template. It imports torch as the program would, or leaves torch to the ranks."""
    modules = template_modules(config.kind, config.target, config.cwd, config.preload)
    later, before, alone = LATER, Prologue({}), "torch" not in modules
    if spawner.warm and modules != config.preload:
        place = (config.kind, config.target, config.cwd)
        before = read_prologue(*place, environment, without_torch=alone)
    if before.obstacle:
        modules, later = list(config.preload), ()
        reason = one_line(before.obstacle, longest=_LONGEST)
        config.lines.show(f"{'numpy' if alone else 'torch'} is not imported in advance: {reason}")
    note = config.learn_imports == "on" and not before.lasting
    words = (config.target, *config.args)
    spawner.prepare(environment, modules, words, later, note, before.variables)
