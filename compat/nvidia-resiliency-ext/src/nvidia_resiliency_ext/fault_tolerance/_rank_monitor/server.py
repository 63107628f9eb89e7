"""The rank monitor: hands its page to one rank after another, and holds it to its limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nvidia_resiliency_ext.fault_tolerance._rank_monitor.connection import GOODBYE, LONGEST, peer
from nvidia_resiliency_ext.fault_tolerance._rank_monitor.settings import MonitorSettings
from undaunted.attribution.evidence import expired_in_words
from undaunted.base.process import open_pidfd, signal_pidfd
from undaunted.base.unix_sockets import listen_at
from undaunted.fault_tolerance import calculated_limits
from undaunted.fault_tolerance.agent.watch import Callbacks, PageWatch
from undaunted.progress.area import MailboxRequest, PageArea

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.progress.timeouts import Expired

_WAITING = 16  # ranks that wait for the page
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_LONGEST_REASON = 1000
_NO_LAUNCHER = b"there is no launcher; a rank monitor by itself takes only limits"


class RankMonitor:
    """Serves ranks until it is closed. Belongs to the running event loop.

    Args:
        settings: what the rank is held to.
        listening: the socket, bound and listening; closed by `close`.
        area: one page; stays the caller's.
        say: shows a line.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        listening: socket.socket,
        area: PageArea,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._listening = listening
        self._area = area
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._connection: socket.socket | None = None
        self._pidfd: int | None = None
        self._who = ""
        self._again: asyncio.TimerHandle | None = None
        listener = Callbacks(
            limit_passed=self._limit_passed,
            silent=lambda _index, _expired: None,
            page_changed=lambda _index, _page: None,
            ring_events=lambda _index, _events, _lost: None,
            request=self._answer,
            paused=lambda _seconds: None,
            no_heartbeats=lambda: None,
        )
        area.set_limits(self._limits)
        self._watch = PageWatch(area, self._limits, listener)
        self._watch.open()
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Let the rank go, and listen no more."""
        self._let_go()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._watch.close()

    # --- connections ----------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        connection.setblocking(False)
        pid, uid = peer(connection)
        if uid != os.geteuid():
            self._say(f"process {pid} of another user was refused")
            connection.close()
            return
        self._connection, self._who = connection, f"process {pid}"
        self._area.reset(0)
        self._pidfd = open_pidfd(pid) if pid else None
        self._loop.remove_reader(self._listening)  # one rank at a time, the others wait
        self._loop.add_reader(connection, self._read)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._let_go)
        try:
            socket.send_fds(connection, [str(os.getpid()).encode()], self._area.fds())
        except OSError:
            self._let_go()
            return
        self._watch.hold_to_limits([time.monotonic_ns()])

    def _read(self) -> None:
        assert self._connection is not None
        try:
            message = self._connection.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message in (b"", GOODBYE):
            self._let_go()
        else:
            self._who = f"{message.decode('ascii', errors='replace')} ({self._who})"

    def _let_go(self) -> None:
        """The rank has ended, or wants to be watched no more."""
        if self._connection is None:
            return
        self._watch.hold_to_limits([])
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._loop.remove_reader(self._connection)
        self._connection.close()
        self._connection = None
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._loop.add_reader(self._listening, self._accept)

    # --- the rank -------------------------------------------------------------------------------

    def _limit_passed(self, _index: int, expired: Expired) -> None:
        number = self._settings.signal
        if self._pidfd is None:
            self._say(f"{self._who}: {expired_in_words(expired)}; its process cannot be reached")
            return
        if self._again is None:
            name = signal.Signals(number).name
            self._say(f"{self._who}: {expired_in_words(expired)}; ended with {name}")
        signal_pidfd(self._pidfd, signal.SIGCONT)
        signal_pidfd(self._pidfd, number)
        self._again = self._loop.call_later(self._settings.again_s, self._look_again)

    def _look_again(self) -> None:
        self._watch.apply(self._limits, {})

    def _answer(self, index: int, message: MailboxRequest) -> None:
        self._area.answer(index, message, self._reply(message.payload))

    def _reply(self, payload: bytes) -> bytes:
        if (taken := calculated_limits.take(payload, self._limits)) is None:
            return _NO_LAUNCHER
        if taken.limits is not self._limits:
            self._limits = taken.limits
            self._area.set_limits(self._limits)
            self._watch.apply(self._limits, {})
        return taken.reply


def serve(settings: MonitorSettings, ready: Callable[[], object]) -> None:
    """Be a rank monitor, in this process, until a signal or the end of the parent.

    Args:
        settings: of the monitor.
        ready: called once ranks can connect.

    Raises:
        OSError: the path of the socket cannot be used, or there is no memory for the page.
    """
    asyncio.run(_serve(settings, ready))


async def _serve(settings: MonitorSettings, ready: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in _STOP:
        loop.add_signal_handler(number, stop.set)
    with contextlib.ExitStack() as undo:
        if settings.parent:
            pidfd = open_pidfd(settings.parent)
            if pidfd is None or os.getppid() != settings.parent:
                return
            undo.callback(os.close, pidfd)
            loop.add_reader(pidfd, stop.set)
            undo.callback(loop.remove_reader, pidfd)
        area = undo.enter_context(PageArea.create(1))
        listening = listen_at(settings.path, socket.SOCK_SEQPACKET, _WAITING)
        monitor = RankMonitor(settings, listening, area, _say)
        undo.callback(_remove, settings.path, _place(settings.path))
        undo.callback(monitor.close)
        ready()
        await stop.wait()


def main() -> int:
    """Be the program that `start.start` starts: settings from standard input, ready by a pipe."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=MonitorSettings)
    ready_fd = int(sys.argv[1])

    def ready() -> None:
        os.write(ready_fd, b"+")
        os.close(ready_fd)

    try:
        serve(settings, ready)
    except OSError as error:
        os.write(ready_fd, str(error.strerror or error).encode()[:_LONGEST_REASON])
        return 1
    return 0


def _place(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _remove(path: str, place: tuple[int, int]) -> None:
    """Remove our socket, not that of a monitor which has taken over the path."""
    with contextlib.suppress(OSError):
        if _place(path) == place:
            Path(path).unlink()


def _say(line: str) -> None:
    print(f"[undaunted] rank monitor: {line}", file=sys.stderr, flush=True)
