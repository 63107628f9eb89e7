"""An attribution service of this launcher's own: `undaunted serve`, started and ended with it.

The launcher makes the socket that the service listens at, so that there is no port to agree on and
requests wait while it starts. A token in the run directory keeps others of this machine out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.deadline import in_time, wait_for
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
        self._pid = -1
        self._pidfd = -1
        self._ended = asyncio.Event()
        self._closing = False
        try:
            self._begin(config)
        except (OSError, TokenError) as error:
            why = getattr(error, "strerror", None) or error
            self._say(f"the attribution service cannot be started: {why}")

    def processes(self) -> set[tuple[int, int]]:
        """Pid and start time, if it runs."""
        start = process.start_time(self._pid) if self._pidfd >= 0 else None
        return set() if start is None else {(self._pid, start)}

    async def close(self) -> None:
        """End it; what it has found is in its ledger."""
        self._closing = True
        if self._pidfd < 0:
            return
        process.signal_pidfd(self._pidfd, signal.SIGKILL)  # its programs die with it
        with contextlib.suppress(TimeoutError):
            await wait_for(self._ended.wait(), _KILL_S)
        if self._pidfd >= 0:
            self._forget()

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
            self._pid = process.spawn(argv, os.environ, [fd])
        pidfd = process.open_pidfd(self._pid)
        assert pidfd is not None, "an own child exists until it has been waited for"
        self._pidfd = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._over)

    def _over(self) -> None:
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for all children
            os.waitpid(self._pid, 0)
        self._forget()
        self._ended.set()
        if not self._closing:
            self._say(
                f"the attribution service of this launcher (pid {self._pid}) has ended; the job "
                "goes on without"
            )

    def _forget(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
