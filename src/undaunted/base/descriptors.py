"""Descriptors: sent over a Unix socket, and kept from programs that close all they find."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_INT_BYTES = struct.calcsize("i")
EVENTFD = "anon_inode:[eventfd]"
_HIGH = 500  # programs that use select() have room up to 1023
_CUT = socket.MSG_TRUNC | socket.MSG_CTRUNC


def move_high(fd: int) -> int:
    """Move a descriptor to a number that programs hardly use, close-on-exec; return the number.

    A program that closes descriptors by number, as daemons do, gets the low ones again. The number
    stays where the limit of descriptors is too low.
    """
    lowest = min(_HIGH, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    except OSError:
        return fd
    os.close(fd)
    return moved


def identity(fd: int, process: int | str = "self") -> str:
    """Return which file a descriptor stands for, "" = none, or that cannot be seen.

    It begins with what ``/proc/PID/fd`` shows. Another file that has got the number since then has
    another identity.

    Args:
        fd: its number.
        process: whose descriptor it is: a pid.
    """
    try:
        link = os.readlink(f"/proc/{process}/fd/{fd}")
        if link == EVENTFD:  # all of them have the same inode
            lines = Path(f"/proc/{process}/fdinfo/{fd}").read_text("utf-8").splitlines()
            return " ".join([link, *(line for line in lines if line.startswith("eventfd-id"))])
        status = Path(f"/proc/{process}/fd/{fd}").stat()
    except OSError:
        return ""
    return f"{link} {status.st_dev}:{status.st_ino}"


def is_still(fd: int, known: str) -> bool:
    """Return whether a descriptor of this process stands for the file whose `identity` is known."""
    return bool(known) and identity(fd) == known


def close_own(sock: socket.socket, known: str) -> None:
    """Close a socket, unless its number belongs to another file than the one that is known."""
    if is_still(sock.fileno(), known):
        sock.close()
    else:
        sock.detach()


def send(sock: socket.socket, data: bytes | memoryview, fd: int = -1) -> int:
    """Send bytes, and a descriptor with them; return how many bytes have gone.

    ``socket.send_fds`` ignores its flags in some versions of Python, so that SIGPIPE would end a
    program that does not handle it.

    Args:
        sock: a Unix socket.
        data: not empty.
        fd: stays the caller's; -1 = none.

    Raises:
        OSError: the connection has broken; BlockingIOError when there is no room.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))] if fd >= 0 else []
    return sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)


class Received(NamedTuple):
    """The content of one read.

    Attributes:
        data: bytes; empty at the end of the connection.
        fds: descriptors, close-on-exec, which are the caller's from now on.
        cut: whether there was more of a packet, or of descriptors, than there was room for.
    """

    data: bytes
    fds: list[int]
    cut: bool


def receive(sock: socket.socket, size: int, most_fds: int) -> Received:
    """Read bytes and the descriptors that come with them.

    ``socket.recv_fds`` ignores its flags in some versions of Python, so that what it returns would
    be inherited by the programs that are started.

    Args:
        sock: a Unix socket.
        size: bytes to read at the most.
        most_fds: descriptors to take at the most.

    Raises:
        OSError: the connection has broken; BlockingIOError when there is nothing to read.
    """
    room = socket.CMSG_SPACE(most_fds * _INT_BYTES)
    data, ancillary, flags, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(content) // _INT_BYTES
            fds.extend(struct.unpack(f"{count}i", content[: count * _INT_BYTES]))
    return Received(data, fds, bool(flags & _CUT))
