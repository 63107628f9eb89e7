"""Descriptors over a Unix socket."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_INT_BYTES = struct.calcsize("i")
_CUT = socket.MSG_TRUNC | socket.MSG_CTRUNC


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
    """What one read has brought.

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
