"""The writer process: writes the trainer's arenas to files. Started by `handle.WriterProcess`.

Without torch and with few imports, so that it is there in hundredths of a second. One thread
listens and ends the process when the trainer ends, also in the middle of a write; another one does
the jobs, one after the other.
"""

from __future__ import annotations

import mmap
import os
import queue
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.checkpointing.files import priority
from undaunted.checkpointing.files.direct import follows_umask
from undaunted.checkpointing.writer.connection import Connection
from undaunted.checkpointing.writer.messages import Arena, Begin, Cancel, ToWriter, Write
from undaunted.checkpointing.writer.page import Page
from undaunted.checkpointing.writer.work import Work, Worker

if TYPE_CHECKING:
    from typing import NoReturn

# A scheduler sends these to everything; the trainer decides what they mean.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: list[str]) -> None:
    """Serve until the trainer is gone.

    Args:
        argv: ``--fd N --parent PID``: this end of the socket, and the trainer; with
            ``--thread-stays`` the kernel ends this process when the thread that started it ends.
    """
    _leave_streams()  # first: what is opened would get the numbers of those that are closed
    fd, parent = int(argv[argv.index("--fd") + 1]), int(argv[argv.index("--parent") + 1])
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # Ends this process even while it is stopped.
    if "--thread-stays" in argv and not process.die_with_parent(parent):
        _end()
    # The other end of the socket may also be open in children that the trainer has forked.
    pidfd = process.open_pidfd(parent)
    if pidfd is None or os.getppid() != parent:
        _end()
    if not follows_umask():
        os.umask(0o077)
    _Service(socket.socket(fileno=fd), pidfd).run()


def _end() -> NoReturn:
    """At once: threads that write do not matter any more."""
    os._exit(0)


def _leave_streams() -> None:
    """Standard error stays, unless it is closed: an error of this program goes there."""
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1) if sys.stderr else (0, 1, 2):
        os.dup2(null, target)
    if null > 2:
        os.close(null)


class _Service:
    """Listens."""

    def __init__(self, sock: socket.socket, pidfd: int) -> None:
        self._sock = sock
        self._pidfd = pidfd
        self._connection = Connection(sock, ToWriter)
        self._arenas: dict[int, memoryview] = {}
        self._works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._latest: Work | None = None

    def run(self) -> None:
        while True:
            if self._pidfd in process.wait_for_any([self._sock.fileno(), self._pidfd]):
                _end()
            try:
                messages = self._connection.receive()
            except OSError:
                _end()
            if messages is None:
                _end()
            for message in messages:
                self._take(message)

    def _take(self, message: Begin | Arena | Write | Cancel) -> None:
        match message:
            case Begin(url=url, options=options):
                priority.lower(options.nice, options.io_class)
                worker = Worker(url, options, Page(self._connection.fds.popleft()), self._sock)
                threading.Thread(
                    target=worker.run, args=(self._works,), name="undaunted-work", daemon=True
                ).start()
            case Arena(slot=slot, size=size):
                self._arenas[slot] = _map(self._connection.fds.popleft(), size)
            case Write(slot=slot):
                self._latest = Work(message, self._arenas.get(slot))
                self._works.put(self._latest)
            case Cancel():
                if self._latest is not None:
                    self._latest.cancelled.set()


def _map(fd: int, size: int) -> memoryview:
    """Map an arena with its pages, so that the first save does not have to wait for them."""
    try:
        if not 0 < size <= os.fstat(fd).st_size:  # touching what is not there would end the process
            return memoryview(b"")
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return memoryview(mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1:])
