"""The process of the log server, on the host of the coordinator; one that ends is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

import msgspec

from undaunted.base import process
from undaunted.base.deadline import wait_for
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


class LogServer:
    """Starts the process, and starts it again. Used on one loop.

    Args:
        run_id, nodes, config: of the job.
        say: shows a line.
    """

    def __init__(
        self, run_id: str, nodes: Nodes, config: FunnelConfig, say: Callable[[str], None]
    ) -> None:
        self._task = Task(run_id=run_id, nodes=nodes, config=config)
        self._say = say
        self._running: tuple[int, int] | None = None  # pid and pidfd
        self._pipe = -1  # closing it tells the process to end
        self._timers = Timers()
        self._ended = asyncio.Event()
        self._closing = False

    def begin(self) -> None:
        """Start it."""
        told, self._pipe = os.pipe()
        task = msgspec.structs.replace(self._task, told_fd=told)
        argv = process.module_command(_PROGRAM, msgspec.json.encode(task).decode())
        try:
            pid = process.spawn(argv, os.environ, [told])
        except OSError as error:
            self._tell()
            self._say(f"the log server cannot be started: {error.strerror or error}")
            return
        finally:
            os.close(told)
        pidfd = process.open_pidfd(pid)
        assert pidfd is not None, "an own child exists until it has been waited for"
        self._running = (pid, pidfd)
        asyncio.get_running_loop().add_reader(pidfd, self._over)

    def processes(self) -> set[tuple[int, int]]:
        """Pid and start time, if it runs."""
        if self._running is None:
            return set()
        pid = self._running[0]
        start = process.start_time(pid)
        return set() if start is None else {(pid, start)}

    async def close(self) -> None:
        """Let it write what is on its way, within the grace that was asked for; then end it."""
        self._closing = True
        self._timers.cancel()
        self._tell()
        await self._wait(self._task.config.grace_s + _BEYOND_GRACE_S)
        if self._running is None:
            return
        self._say("the log server does not end and is killed; logs may be incomplete")
        process.signal_pidfd(self._running[1], signal.SIGKILL)
        await self._wait(_KILL_S)
        if self._running is not None:
            self._forget(self._running[1])

    def _over(self) -> None:
        assert self._running is not None
        pid, pidfd = self._running
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for all children
            os.waitpid(pid, 0)
        self._forget(pidfd)
        self._ended.set()
        if self._closing:
            return
        self._say(f"the log server (pid {pid}) has ended; it is started again")
        self._timers.set("start", _AGAIN_S, self.begin)

    def _forget(self, pidfd: int) -> None:
        self._running = None
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._tell()

    def _tell(self) -> None:
        """Have it end, if it has not been told yet."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    async def _wait(self, timeout_s: float) -> None:
        if self._running is not None:
            with contextlib.suppress(TimeoutError):
                await wait_for(self._ended.wait(), timeout_s)
