"""An attribution service of this launcher's own: `undaunted serve`, started and ended with it.

The launcher makes the socket that the service listens at, so that there is no port to agree on and
requests wait while it starts. A token in the run directory keeps others of this machine out.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.child import Companion
from undaunted.base.deadline import in_time
from undaunted.base.directories import make_private
from undaunted.base.ids import file_name
from undaunted.coordinator.wire.credentials import TokenError, find_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.run_config import RunConfig

_KILL_S = 2.0
_DISK_S = 1.0


class OwnService:
    """The service, running. On the loop; never raises.

    Args:
        config: of the run.
        say: shows a line.

    Attributes:
        url: where it is asked; nobody answers there if it could not be started.
        token: what it asks for.
    """

    def __init__(self, config: RunConfig, say: Callable[[str], None]) -> None:
        self.url = "http://127.0.0.1:1"
        self.token = b""
        self._say = say
        self._program: Companion | None = None
        self._closing = False
        try:
            self._begin(config)
        except (OSError, TokenError) as error:
            why = getattr(error, "strerror", None) or error
            self._say(f"the attribution service cannot be started: {why}")

    def processes(self) -> set[tuple[int, int]]:
        """Pid and start time, if it runs."""
        return set() if self._program is None else self._program.processes()

    async def close(self) -> None:
        """End it; what it has found is in its ledger."""
        self._closing = True
        if self._program is not None:
            self._program.kill()  # its programs die with it
            await self._program.ended(_KILL_S)
            self._program.release()

    def _begin(self, config: RunConfig) -> None:
        directory = Path(config.run_dir, f"attribution-{file_name(config.node)}")
        token_file = directory / "token"

        def make() -> bytes:
            make_private(directory)
            return find_token({}, token_file, create=True)

        self.token = in_time(_DISK_S, make)
        export_url = config.ft.attribution_export_url
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            fd = listening.fileno()
            argv = process.module_command(
                "undaunted.cli.main",
                "serve",
                f"--listen-fd={fd}",
                f"--allowed-root={Path(config.applog_prefix).parent}",
                f"--token-file={token_file}",
                f"--state-dir={directory}",
                *([f"--export-url={export_url}"] if export_url else []),
            )
            self._program = Companion(argv, os.environ, [fd], self._over)

    def _over(self) -> None:
        if not self._closing and self._program is not None:
            self._say(
                f"the attribution service of this launcher (pid {self._program.pid}) has ended; "
                "the job goes on without"
            )
