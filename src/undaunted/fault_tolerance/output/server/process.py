"""The process of the log server, on the host of the coordinator; one that ends is replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from undaunted.base import process
from undaunted.base.child import Companion
from undaunted.base.timers import Timers
from undaunted.fault_tolerance.output.server.program import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.output.server.config import LogServerConfig

_PROGRAM = "undaunted.fault_tolerance.output.server.program"
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
        self, run_id: str, nodes: Nodes, config: LogServerConfig, say: Callable[[str], None]
    ) -> None:
        self._task = Task(run_id=run_id, nodes=nodes, config=config)
        self._say = say
        self._program: Companion | None = None
        self._pipe = -1  # closing it tells the process to end
        self._timers = Timers()
        self._closing = False

    def begin(self) -> None:
        """Start it."""
        told, self._pipe = os.pipe()
        task = msgspec.structs.replace(self._task, told_fd=told)
        argv = process.module_command(_PROGRAM, msgspec.json.encode(task).decode())
        try:
            self._program = Companion(argv, os.environ, [told], self._over)
        except OSError as error:
            self._tell()
            self._say(f"the log server cannot be started: {error.strerror or error}")
            return
        finally:
            os.close(told)

    def processes(self) -> set[tuple[int, int]]:
        """Pid and start time, if it runs."""
        return set() if self._program is None else self._program.processes()

    async def close(self) -> None:
        """Let it write what is on its way, within the grace that was asked for; then end it."""
        self._closing = True
        self._timers.cancel()
        self._tell()
        if self._program is None:
            return
        if not await self._program.ended(self._task.config.grace_s + _BEYOND_GRACE_S):
            self._say("the log server does not end and is killed; logs may be incomplete")
            self._program.kill()
            await self._program.ended(_KILL_S)
        self._program.release()

    def _over(self) -> None:
        self._tell()
        if self._closing or self._program is None:
            return
        self._say(f"the log server (pid {self._program.pid}) has ended; it is started again")
        self._timers.set("start", _AGAIN_S, self.begin)

    def _tell(self) -> None:
        """Have it end, if it has not been told yet."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
