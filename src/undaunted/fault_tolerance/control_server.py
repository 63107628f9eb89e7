"""Listens at the socket of a launcher, or of a coordinator alone; see `control_socket`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import in_time, within
from undaunted.base.unix_sockets import listen_at
from undaunted.fault_tolerance import control_socket as s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from undaunted.coordinator.wire.server import Server

_DISK_S = 5.0  # the run directory may be on a disk that hangs
_BACKLOG = 128


class ControlServer:
    """The socket of a run directory, and who is connected.

    Args:
        run_dir, run_id: of the run.
        node: who answers.
        version: of undaunted.
        answer: see `Questions`.
        say: shows a line.
    """

    def __init__(
        self,
        run_dir: str,
        run_id: str,
        node: str,
        version: str,
        answer: Callable[[bytes, str], Awaitable[bytes]],
        say: Callable[[str], None],
    ) -> None:
        self._path = Path(run_dir, s.file_name(node))
        self._run_id, self._node, self._version = run_id, node, version
        self._answer, self._say = answer, say
        self._opening: asyncio.Future[tuple[socket.socket, int]] | None = None
        self._server: Server | None = None

    async def open(self) -> None:
        """Begin to listen; where that does not go, the run goes on without."""
        loop = asyncio.get_running_loop()
        self._opening = loop.run_in_executor(None, in_time, _DISK_S, self._listen)
        try:
            listening, _ = await asyncio.shield(self._opening)
        except OSError as error:
            why = error.strerror or error
            self._say(f"{self._path.name}: {why}; undaunted ctl cannot ask here")
        else:
            await self._serve(listening)

    async def close(self) -> None:
        """End every connection, and remove the socket."""
        if self._opening is None:
            return
        with contextlib.suppress(OSError):
            listening, inode = await self._opening
            if self._server is not None:
                await self._server.close("it ends")
            listening.close()
            await asyncio.to_thread(within, _DISK_S, partial(self._remove, inode), None)

    def _listen(self) -> tuple[socket.socket, int]:
        with s.address_of(self._path) as name:
            listening = listen_at(name, socket.SOCK_STREAM, _BACKLOG)
            listening.setblocking(False)
            return listening, Path(name).stat().st_ino

    async def _serve(self, listening: socket.socket) -> None:
        # Not on the way to the first rank.
        from undaunted.coordinator.protocol import Question
        from undaunted.coordinator.service.questions import Questions
        from undaunted.coordinator.wire.handshake import Terms
        from undaunted.coordinator.wire.server import Server

        terms = Terms(self._run_id, self._version, node=self._node)
        name = f"@{self._path.name}"
        self._server = Server(name, Questions(self._answer), terms, messages=Question)
        self._server.longest = s.MOST_ASKED + s.MARGIN
        await self._server.start(listening)

    def _remove(self, inode: int) -> None:
        """Remove the file, unless another one of this name has put its own there."""
        if self._path.stat().st_ino == inode:
            self._path.unlink()
