"""The guard of one rank outside of `undaunted run`: a process that outlives the rank.

Started by `start.connect`; its only argument is the descriptor of its end of a socket pair. The
guard of rank 0 also runs the controller, for as long as any guard is connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from undaunted import __version__
from undaunted.base.signals import PROGRAMS_SIGNALS
from undaunted.coordinator.protocol import MAX_LINK_BYTES
from undaunted.coordinator.wire.sockets import peer
from undaunted.inprocess.core.links import silence_s, unreachable_s
from undaunted.inprocess.core.messages import VERSION
from undaunted.inprocess.guard import startup
from undaunted.inprocess.guard.host import ControllerHost, LocalConnection
from undaunted.inprocess.guard.service import GuardService

if TYPE_CHECKING:
    from undaunted.coordinator.wire.handshake import Terms
    from undaunted.coordinator.wire.server import Server
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.guard.controller_link import ControllerLink

# A scheduler sends these to all processes; the rank decides what follows for the job.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *PROGRAMS_SIGNALS)


# Exit codes.
_FAILED = 1
_BROKEN = 70


class _RefusedError(Exception):
    """This guard cannot serve; the message is for the rank's user."""


def main(argv: list[str]) -> int:
    """Serve the rank at the other end of descriptor ``argv[0]``; return the exit code."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(argv[0])) as sock:
        begin = startup.receive(sock, startup.Begin)
        if begin is None:
            return 0  # the rank has ended, or found no controller
        try:
            _redirect(begin.logfile)
            _leave_pid(begin)
            target = peer(sock).pid
            _say(begin, f"monitor_process={os.getpid()} begins to watch target_pid={target}")
            asyncio.run(_Program(begin, sock).run())
        except (_RefusedError, OSError) as error:
            _say(begin, str(error))
            _answer(sock, startup.Refused(str(error)))
            return _FAILED
        except asyncio.CancelledError:
            return _BROKEN
    return 0


class _Program:
    """The guard process, on its loop."""

    def __init__(self, begin: startup.Begin, sock: socket.socket) -> None:
        self._begin = begin
        self._sock = sock
        self._until = time.monotonic() + begin.barrier_timeout_s
        self._service = GuardService(self._say)

    async def run(self) -> None:
        """Serve until this guard is not needed any more.

        Raises:
            asyncio.CancelledError: an error in this guard has ended it; its rank leaves the call.
        """
        asyncio.get_running_loop().set_exception_handler(
            partial(self._break, asyncio.current_task())
        )
        if self._begin.hosts:
            await self._host()
        else:
            await self._follow()

    async def _serve(self, port: int = 0) -> None:
        """Serve the rank until it has ended and that was reported."""
        _answer(self._sock, startup.Ready(port))
        try:
            self._service.serve(self._sock)
            await self._service.idle()
        finally:
            self._service.close()

    def _say(self, text: str) -> None:
        _say(self._begin, text)

    def _break(
        self,
        task: asyncio.Task[None] | None,
        loop: asyncio.AbstractEventLoop,
        context: dict[str, Any],
    ) -> None:
        """An error that no code has caught: the state could not be trusted any more."""
        loop.default_exception_handler(context)
        if task is not None and not isinstance(context.get("exception"), OSError | None):
            task.cancel()

    # --- the controller is elsewhere ------------------------------------------------------------

    async def _follow(self) -> None:
        from undaunted.coordinator.wire.client import connect
        from undaunted.inprocess.guard.controller_link import ControllerLink
        from undaunted.inprocess.guard.links import ToGuard

        link = ControllerLink(
            self._begin.address,
            partial(connect, terms=self._terms(), messages=ToGuard),
            self._service,
            interval_s=self._begin.heartbeat_interval_s,
            silence_s=silence_s(self._begin.heartbeat_timeout_s),
            say=self._say,
        )
        if await self._connect(link):
            await self._serve()
        await link.close()

    async def _connect(self, link: ControllerLink) -> bool:
        """Return whether there is a connection; the rank may have ended before."""
        from undaunted.coordinator.wire.connection import WireError

        loop = asyncio.get_running_loop()
        connecting = loop.create_task(link.connected(self._begin.barrier_timeout_s))
        loop.add_reader(self._sock, connecting.cancel)  # readable now means that the rank has ended
        try:
            await connecting
        except asyncio.CancelledError:
            return False
        except WireError as error:
            remedy = (
                "if another job has the same MASTER_PORT, give each its own"
                if error.refused
                else "it is in rank 0's guard, see whether that one runs"
            )
            raise _RefusedError(f"the controller of the job: {error}; {remedy}") from None
        finally:
            loop.remove_reader(self._sock)
        return True

    def _terms(self) -> Terms:
        from undaunted.coordinator.wire.handshake import Terms

        return Terms(
            run_id=f"inprocess {self._begin.run}",
            build=__version__,
            token=self._begin.token,
            node=f"rank {self._begin.job_rank}",
            major=VERSION,
        )

    # --- the controller is here -----------------------------------------------------------------

    async def _host(self) -> None:
        limit_s = unreachable_s(self._begin.heartbeat_timeout_s)
        host = ControllerHost(lambda *_: self._note, self._say, silence_s=limit_s)
        server = await self._listen(host) if self._begin.address else None
        try:
            link = LocalConnection(host, self._service)
            await self._serve(server.port if server is not None else 0)
            link.close()
            await self._unneeded(host)
        finally:
            host.close()
            if server is not None:
                await server.close("the controller ends")

    async def _listen(self, host: ControllerHost) -> Server:
        from undaunted.coordinator.wire.connection import WireError
        from undaunted.coordinator.wire.server import Server
        from undaunted.inprocess.guard.links import ToController

        server = Server(
            self._begin.address, host, self._terms(), say=self._say, messages=ToController
        )
        server.nodes = self._begin.world_size
        server.longest = MAX_LINK_BYTES
        _allow_descriptors()
        try:
            await server.start()
        except WireError as error:
            raise _RefusedError(
                f"{error}: another job or program listens there; give this job another "
                'MASTER_PORT, or a free port with store_kwargs={"port": ...}'
            ) from None
        return server

    async def _unneeded(self, host: ControllerHost) -> None:
        """Wait for all ranks to come, for `barrier_timeout` at most, and all guards to go."""
        host.seen.add(self._begin.job_rank)  # it has ended, perhaps without any call
        loop = asyncio.get_running_loop()
        everyone = loop.create_task(host.everyone_seen(self._begin.world_size))
        for number in _IGNORED:
            loop.add_signal_handler(number, everyone.cancel)
        await asyncio.wait({everyone}, timeout=max(0.0, self._until - time.monotonic()))
        everyone.cancel()
        await host.deserted()

    def _note(self, note: Note) -> None:
        self._say(note.line())


def _allow_descriptors() -> None:
    """Every guard of the job is a connection, of which the usual limit allows 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some containers
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _answer(sock: socket.socket, answer: startup.Ready | startup.Refused) -> None:
    try:
        startup.send(sock, answer)
    except OSError:
        return  # the end of the rank is noticed where it is served


def _redirect(logfile: str) -> None:
    """Let go of the rank's standard streams."""
    null = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = _open("monitor_process_logfile", logfile, flags) if logfile else null
    for fd, target in enumerate((null, log, log)):
        os.dup2(target, fd)
    for fd in {null, log} - {0, 1, 2}:
        os.close(fd)


def _leave_pid(begin: startup.Begin) -> None:
    if not begin.pidfile:
        return
    how = os.O_APPEND if begin.append_pid else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how
    with os.fdopen(_open("monitor_process_pidfile", begin.pidfile, flags), "w") as file:
        file.write(f"{os.getpid()}\n")


def _open(argument: str, path: str, flags: int) -> int:
    """Open a file that an argument of `Wrapper` names."""
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise _RefusedError(
            f"{argument}={path!r} cannot be written: {error.strerror}; give a file in a directory "
            "that exists on this node and may be written to, or leave the argument out"
        ) from error


def _say(begin: startup.Begin, text: str) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    try:
        print(f"[{now}] guard of rank {begin.job_rank}: {text}", file=sys.stderr, flush=True)
    except OSError:
        return  # a full disk


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
