"""The writer of the logs of the job: this launcher, or the log server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.output.server.process import LogServer
    from undaunted.fault_tolerance.output.server.sender import Sender
    from undaunted.fault_tolerance.run_config import RunConfig

    # Opens a log by its path. The function returns how many bytes wait to be copied to it.
    OpenLog = Callable[[str, Callable[[], int]], LogFile]


def open_here(path: str, behind: Callable[[], int]) -> LogFile:
    """Open a log on this node.

    Raises:
        OSError: not possible.
    """
    del behind
    return LogFile(path)


class JobLogs:
    """Opens logs; on the coordinator's host it runs the log server, if there is one.

    Args:
        config: the run.
        build: version of undaunted.
        say: shows a line; called by threads as well.
    """

    def __init__(self, config: RunConfig, build: str, say: Callable[[str], None]) -> None:
        self._config, self._nodes = config.log_server, config.nodes
        self._sender: Sender | None = None
        self._server: LogServer | None = None
        if self._config is None or self._nodes is None:
            return
        from undaunted.coordinator.wire.handshake import Terms
        from undaunted.fault_tolerance.output.server.process import LogServer
        from undaunted.fault_tolerance.output.server.sender import Sender

        if self._nodes.is_host:
            self._server = LogServer(config.run_id, self._nodes, self._config, say)
        host = self._nodes.endpoints[0].rpartition(":")[0]
        terms = Terms(config.run_id, build, node=config.node)
        self._sender = Sender(self._nodes, terms, f"{host}:{self._config.port}", say)

    def begin(self) -> None:
        """Start the log server if it belongs here, and begin to send; on the loop."""
        if self._server is not None:
            self._server.begin()
        if self._sender is not None:
            self._sender.begin()

    def open(self, path: str, behind: Callable[[], int]) -> LogFile:
        """Open a log of the job.

        Raises:
            OSError: not possible.
        """
        if self._sender is None or self._config is None:
            return open_here(path, behind)
        try:
            relative = self._config.relative(path)
        except ValueError:  # messages of this node alone
            return open_here(path, behind)
        from undaunted.fault_tolerance.output.server.sender import SentFile

        return SentFile(self._sender, relative, behind)

    def processes(self) -> set[tuple[int, int]]:
        """Processes that belong to no round: pid and start time."""
        return set() if self._server is None else self._server.processes()

    async def close(self) -> None:
        """Have everything written that is on its way, within the grace that was asked for."""
        if self._sender is not None and self._config is not None:
            await asyncio.to_thread(self._sender.close, self._config.grace_s)
        if self._server is not None:
            await self._server.close()
