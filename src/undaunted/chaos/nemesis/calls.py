"""The socket on which ranks say that the moment of a fault has come, and wait until it is made."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.deadline import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

VARIABLE = "UNDAUNTED_NEMESIS"
_NAME = "nemesis.sock"
_LONGEST_PATH = 107  # bytes, of a Unix socket
_LONGEST_LINE = 4096
_LINE_S = 30.0  # the rank does not wait longer either
_DONE = "done"


class Call(msgspec.Struct, frozen=True):
    """The message of a rank.

    Attributes:
        fault: id of the fault whose moment has come.
        rank: the rank that calls.
        iteration: which it is about to begin.
        pid: of its process.
    """

    fault: str
    rank: int
    iteration: int
    pid: int = 0


class CallServer:
    """Answers calls of ranks while it is open. The owner awaits `close`."""

    def __init__(self, directory: Path, act: Callable[[Call], Awaitable[str]]) -> None:
        """Prepare to answer calls.

        Args:
            directory: where the socket is to be, if its path is not too long there.
            act: makes the fault; returns what to answer, "" = done.
        """
        self._act = act
        self._own: Path | None = None
        self.path = directory.resolve() / _NAME
        if len(bytes(self.path)) > _LONGEST_PATH:
            self._own = _short_directory()
            self.path = self._own / _NAME
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to answer.

        Raises:
            OSError: the socket cannot be made.
        """
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=_LONGEST_LINE)
        self.path.chmod(0o600)

    async def close(self) -> None:
        """Answer no more; what is under way is broken off."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            line = await wait_for(reader.readline(), _LINE_S)
            writer.write(f"{await self._answer(line)}\n".encode())
            await wait_for(writer.drain(), _LINE_S)
        except (OSError, ValueError):
            pass  # the rank goes on whatever comes, and the fault is seen not to have happened
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, line: bytes) -> str:
        try:
            call = msgspec.json.decode(line, type=Call)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "this is no call"
        return await self._act(call) or _DONE


def _short_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="undaunted-chaos-"))
    if len(bytes(directory / _NAME)) <= _LONGEST_PATH:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="undaunted-chaos-", dir="/tmp"))
