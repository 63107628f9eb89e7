"""The processes of the log server, on the host of the coordinator; one that ends is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from undaunted.base import process
from undaunted.base.timers import Timers
from undaunted.fault_tolerance.funnel.program import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.funnel.config import FunnelConfig
    from undaunted.fault_tolerance.nodes_config import Nodes

_PROGRAM = "undaunted.fault_tolerance.funnel.program"
_AGAIN_S = 1.0
_BEYOND_GRACE_S = 5.0
_KILL_S = 2.0


class LogServers:
    """All levels on this host. Used on one loop.

    Args:
        run_id, nodes, config: of the job.
        say: shows a line.
    """

    def __init__(
        self, run_id: str, nodes: Nodes, config: FunnelConfig, say: Callable[[str], None]
    ) -> None:
        self._task = Task(run_id=run_id, nodes=nodes, config=config, level=config.leaves)
        self._say = say
        self._running: dict[int, tuple[int, int]] = {}  # pid and pidfd, by level
        self._pipes: dict[int, int] = {}  # closing one tells a level to end
        self._timers = Timers()
        self._ended = asyncio.Event()
        self._closing = False

    def begin(self) -> None:
        """Start all."""
        for level in range(self._task.config.leaves + 1):
            self._start(level)

    def processes(self) -> set[tuple[int, int]]:
        """Those that run: pid and start time."""
        pids = [pid for pid, _ in self._running.values()]
        return {(pid, start) for pid in pids if (start := process.start_time(pid)) is not None}

    async def close(self) -> None:
        """Let them write what is on its way, within the grace that was asked for; then end them.

        Leaves first, so that the last one hears of everything.
        """
        self._closing = True
        self._timers.cancel()
        deadline = asyncio.get_running_loop().time() + self._task.config.grace_s + _BEYOND_GRACE_S
        for levels in (range(self._task.config.leaves), [self._task.config.leaves]):
            for level in levels:
                self._tell(level)
            await self._wait(levels, deadline)
        everything = range(self._task.config.leaves + 1)
        if self._running:
            self._say("the log server does not end and is killed; logs may be incomplete")
            for _, pidfd in self._running.values():
                process.signal_pidfd(pidfd, signal.SIGKILL)
            await self._wait(everything, asyncio.get_running_loop().time() + _KILL_S)
        for level in list(self._running):
            self._forget(level)

    def _start(self, level: int) -> None:
        told, self._pipes[level] = os.pipe()
        task = msgspec.structs.replace(self._task, level=level, told_fd=told)
        argv = process.module_command(_PROGRAM, msgspec.json.encode(task).decode())
        try:
            pid = process.spawn(argv, os.environ, [told])
        except OSError as error:
            self._tell(level)
            self._say(f"the log server cannot be started: {error.strerror or error}")
            return
        finally:
            os.close(told)
        pidfd = process.open_pidfd(pid)
        assert pidfd is not None, "an own child exists until it has been waited for"
        self._running[level] = (pid, pidfd)
        asyncio.get_running_loop().add_reader(pidfd, self._over, level)

    def _over(self, level: int) -> None:
        pid, _ = self._running[level]
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for all children
            os.waitpid(pid, 0)
        self._forget(level)
        self._ended.set()
        if self._closing:
            return
        self._say(f"the log server (pid {pid}) has ended; it is started again")
        self._timers.set(f"start {level}", _AGAIN_S, partial(self._start, level))

    def _forget(self, level: int) -> None:
        _, pidfd = self._running.pop(level)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._tell(level)

    def _tell(self, level: int) -> None:
        """Have a level end, if it has not been told yet."""
        pipe = self._pipes.pop(level, None)
        if pipe is not None:
            os.close(pipe)

    async def _wait(self, levels: range | list[int], deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while any(level in self._running for level in levels):
            self._ended.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), max(0.0, deadline - loop.time()))
                continue
            return
