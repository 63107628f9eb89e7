"""The program of the log server, until the process that has started it closes a pipe.

Started by `process.LogServer` with what it needs to know as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted import __version__
from undaunted.base.deadline import wait_for
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.credentials import TlsError, TokenError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.server import Server
from undaunted.fault_tolerance import job_access
from undaunted.fault_tolerance.nodes_config import Nodes  # noqa: TC001 - type of a field
from undaunted.fault_tolerance.output.server import messages as w
from undaunted.fault_tolerance.output.server.config import LogServerConfig  # noqa: TC001 - type of a field
from undaunted.fault_tolerance.output.server.root import Root

if TYPE_CHECKING:
    from collections.abc import Callable

# Exit codes.
_FAILED = 1
_INCOMPLETE = 4

_AGAIN_S = 1.0
_PREFIX = "[undaunted] log server: "


class Task(msgspec.Struct, kw_only=True, frozen=True):
    """The settings with which the program is started.

    Attributes:
        run_id: of the job.
        nodes: of the job.
        config: what is chosen.
        told_fd: end of a pipe; when the other one is closed, the server ends. -1 = there is none.
    """

    run_id: str
    nodes: Nodes
    config: LogServerConfig
    told_fd: int = -1


def main(argv: list[str]) -> int:
    """Serve; return the exit code."""
    task = msgspec.json.decode(argv[0], type=Task)
    say = _Lines(task)
    try:
        return asyncio.run(_serve(task, say))
    except (WireError, TokenError, TlsError, OSError, ValueError) as error:
        say(str(error))
    return _FAILED


async def _serve(task: Task, say: Callable[[str], None]) -> int:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if task.told_fd >= 0:
        loop.add_reader(task.told_fd, _told, loop, task.told_fd, told)
    token = await asyncio.to_thread(job_access.token, task.nodes)
    terms = Terms(task.run_id, __version__, token)
    tls = job_access.contexts(task.nodes)
    config, peers = task.config, task.nodes.max_nodes
    host = "" if token else "127.0.0.1"
    handler = Root(config, peers, say, expected=task.nodes.min_nodes)
    server = Server(
        f"{host}:{config.port}",
        handler,
        terms,
        tls=tls.server,
        say=say,
        messages=w.FromSender,
    )
    server.nodes = peers
    try:
        if not await _listen(server, told):
            return 0
        await told.wait()
        complete = await handler.finish(config.grace_s)
    finally:
        await server.close("the log server ends")
    return 0 if complete else _INCOMPLETE


def _told(loop: asyncio.AbstractEventLoop, fd: int, told: asyncio.Event) -> None:
    loop.remove_reader(fd)
    told.set()


async def _listen(server: Server, told: asyncio.Event) -> bool:
    """Listen; while another launcher on this host does, wait for its end. False = told to end."""
    while not told.is_set():
        try:
            await server.start()
        except WireError as error:
            if error.number != errno.EADDRINUSE:
                raise
        else:
            return True
        with contextlib.suppress(TimeoutError):
            await wait_for(told.wait(), _AGAIN_S)
    return False


class _Lines:
    """Lines of this program: on standard error, or in a separate file."""

    def __init__(self, task: Task) -> None:
        prefix = task.config.log_prefix
        self._path = Path(f"{prefix}_root.log") if prefix else None

    def __call__(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if self._path is None:
                print(_PREFIX + text, file=sys.stderr, flush=True)
            else:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(f"{_PREFIX}{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
