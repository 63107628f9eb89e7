"""The guards of a job's ranks on this node, outside of `undaunted run`.

Started by `start.connect` of one of the ranks; its only argument is the descriptor of a listening
Unix socket. It forks a guard for each rank that connects: a process that outlives the rank. The
guard of rank 0 also runs the controller, for as long as any guard is connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from undaunted import __version__
from undaunted.base.process import name_process, open_pidfd, wait_for_any, wait_readable
from undaunted.base.signals import PROGRAMS_SIGNALS
from undaunted.coordinator.protocol import MAX_LINK_BYTES
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.server import Server
from undaunted.coordinator.wire.sockets import peer
from undaunted.inprocess.core.messages import VERSION
from undaunted.inprocess.guard import startup
from undaunted.inprocess.guard.controller_link import ControllerLink
from undaunted.inprocess.guard.host import ControllerHost, LocalConnection
from undaunted.inprocess.guard.links import ToController, ToGuard
from undaunted.inprocess.guard.service import GuardService

if TYPE_CHECKING:
    from undaunted.inprocess.core.commands import Note

# A scheduler sends these to all processes; the rank decides what follows for the job.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *PROGRAMS_SIGNALS)


# For the rank that has started this program to connect, seconds.
_UNUSED_S = 60.0

# Exit codes.
_FAILED = 1
_BROKEN = 70


class _RefusedError(Exception):
    """This guard cannot serve; the message is for the rank's user."""


def main(argv: list[str]) -> int:
    """Fork guards for ranks that connect to descriptor ``argv[0]``; return the exit code."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    name_process("guard-template")
    with socket.socket(fileno=int(argv[0])) as listening:
        _redirect("")  # the streams are those of one rank
        sock = _fork_guards(listening)
    if sock is None:
        return 0
    with sock:
        return _guard(sock)


def _fork_guards(listening: socket.socket) -> socket.socket | None:
    """Fork a guard for each rank that connects, until none of them is left.

    A guard neither needs this process nor notices its end.

    Returns:
        In each guard the connection of its rank; in this process None, at the end.
    """
    gc.freeze()  # a collection would write to, and so copy, the memory that all share
    guards: dict[int, int] = {}  # pids, by pidfd
    if not wait_readable(listening.fileno(), _UNUSED_S):
        return None
    listening.setblocking(False)
    while True:
        for fd in wait_for_any([listening.fileno(), *guards]):
            if fd in guards:
                os.waitpid(guards.pop(fd), 0)
                os.close(fd)
            elif (sock := _accepted(listening)) is not None:
                pid = os.fork()
                if pid == 0:
                    for other in guards:
                        os.close(other)
                    return sock
                sock.close()
                pidfd = open_pidfd(pid)
                assert pidfd is not None  # nobody else waits for it
                guards[pidfd] = pid
        if not guards:
            return None


def _accepted(listening: socket.socket) -> socket.socket | None:
    """Return a connection of a process of this user; None = there is none."""
    try:
        sock, _ = listening.accept()
    except OSError:
        return None  # it has gone
    if peer(sock).user == os.geteuid():
        return sock
    sock.close()
    return None


def _guard(sock: socket.socket) -> int:
    """Be the guard of the rank at the other end; return the exit code."""
    target = peer(sock).pid
    _live_beside(target)
    begin = startup.receive(sock, startup.Begin)
    if begin is None:
        return 0  # the rank has ended, or found no controller
    name_process(f"guard-rank{begin.job_rank}")
    try:
        _redirect(begin.logfile)
        _leave_pid(begin)
        _say(begin, f"monitor_process={os.getpid()} begins to watch target_pid={target}")
        asyncio.run(_Guard(begin, sock).run())
    except (_RefusedError, OSError) as error:
        _say(begin, str(error))
        _answer(sock, startup.Refused(str(error)))
        return _FAILED
    except asyncio.CancelledError:
        return _BROKEN
    return 0


def _live_beside(rank: int) -> None:
    """Share CPU time as if the rank had started this process, not another rank of the node."""
    os.setsid()  # sessions share it among each other
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(rank))


class _Guard:
    """The guard of one rank, on its loop."""

    def __init__(self, begin: startup.Begin, sock: socket.socket) -> None:
        self._begin = begin
        self._sock = sock
        self._until = time.monotonic() + begin.limits.barrier_timeout
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
        _answer(self._sock, startup.Ready(os.getpid(), port))
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
        link = ControllerLink(
            self._begin.address,
            partial(connect, terms=self._terms(), messages=ToGuard),
            self._service,
            interval_s=self._begin.heartbeat_interval_s,
            silence_s=self._begin.limits.silence_s,
            say=self._say,
        )
        if await self._connect(link):
            await self._serve()
        await link.close()

    async def _connect(self, link: ControllerLink) -> bool:
        """Return whether there is a connection; the rank may have ended before."""
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(link.connected(self._begin.limits.barrier_timeout))
        loop.add_reader(self._sock, connecting.cancel)  # readable now means that the rank has ended
        try:
            await connecting
        except asyncio.CancelledError:
            return False
        except WireError as error:
            remedy = (
                "if another job has the same MASTER_PORT, give each another one"
                if error.refused
                else "it is in rank 0's guard, see whether that one runs"
            )
            raise _RefusedError(f"the controller of the job: {error}; {remedy}") from None
        finally:
            loop.remove_reader(self._sock)
        return True

    def _terms(self) -> Terms:
        return Terms(
            run_id=f"inprocess {self._begin.run}",
            build=__version__,
            token=self._begin.token,
            node=f"rank {self._begin.job_rank}",
            major=VERSION,
        )

    # --- the controller is here -----------------------------------------------------------------

    async def _host(self) -> None:
        limit_s = self._begin.limits.unreachable_s()
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
