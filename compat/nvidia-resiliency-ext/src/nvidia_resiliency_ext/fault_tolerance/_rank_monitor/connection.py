"""A rank gets its page from a rank monitor: over a Unix socket, as descriptors.

The monitor sends its process id with three descriptors: pages, kick, ack. The rank says who it is,
and says goodbye. Nothing else travels; the rest is in the page.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct

from undaunted.base.descriptors import Received, receive
from undaunted.progress.writer import PageWriter

GOODBYE = b"bye"
LONGEST = 64  # bytes of a message
_UCRED = struct.Struct("3i")
_DESCRIPTORS = 3


class MonitorUnavailableError(Exception):
    """There is no rank monitor at this path that has a page for us; the text says why."""


class Connection:
    """A rank's connection, and the page that came over it. `close` gives the page back."""

    def __init__(self, sock: socket.socket, fds: list[int], writer: PageWriter) -> None:
        self._sock = sock
        self._fds = fds
        self._writer = writer
        self._pid = os.getpid()

    @property
    def lost(self) -> bool:
        """Return whether the monitor has ended, so that nobody answers."""
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Give the page back: what this process tells goes nowhere from now on."""
        self._writer.detach("monitoring was shut down")
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        if os.getpid() == self._pid:  # not for a forked child, which keeps the socket open
            with contextlib.suppress(OSError):  # the monitor may be gone
                self._sock.send(GOODBYE)
        self._sock.close()


def connect(path: str, rank: int, timeout_s: float) -> Connection:
    """Get a page, and have this process tell it what it does.

    A monitor has one page: while another process has it, this one waits.

    Args:
        path: of the monitor's socket.
        rank: global rank of this process.
        timeout_s: how long to wait, seconds.

    Raises:
        MonitorUnavailableError: there is no page to be had.
    """
    with contextlib.ExitStack() as undo:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(sock.close)
        try:
            sock.settimeout(timeout_s)
            sock.connect(path)
            _check_owner(sock, path)
            received = receive(sock, LONGEST, _DESCRIPTORS)
            for fd in received.fds:
                undo.callback(os.close, fd)
            sock.send(f"rank {rank}".encode())
        except TimeoutError:
            raise MonitorUnavailableError(
                f"the rank monitor at {path} did not give its page within {timeout_s:g} s: another "
                "process has it, or the monitor is stuck"
            ) from None
        except OSError as error:
            raise MonitorUnavailableError(
                f"no rank monitor answers at {path}: {error.strerror or error}"
            ) from None
        writer = _attach(received, path)
        undo.pop_all()
    return Connection(sock, received.fds, writer)


def _check_owner(sock: socket.socket, path: str) -> None:
    _, uid = peer(sock)
    if uid not in (0, os.geteuid()):
        raise MonitorUnavailableError(f"{path} belongs to a process of user {uid}")


def _attach(received: Received, path: str) -> PageWriter:
    pid = received.data.decode("ascii", errors="replace")
    if len(received.fds) != _DESCRIPTORS or not pid.isdigit():
        raise MonitorUnavailableError(f"{path} does not lead to a rank monitor of this build")
    pages, kick, ack = received.fds
    writer = PageWriter.attach(f"v1:{pages}:0:{kick}:{ack}:{pid}")
    if not writer.attached:
        raise MonitorUnavailableError(f"{path}: {writer.reason}")
    return writer


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid
