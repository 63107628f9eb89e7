"""Finding out about connections of this process that belong to libraries; shutting them down."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import NamedTuple

_ESTABLISHED = 1  # tcpi_state


class Descriptor(NamedTuple):
    """An open file of this process; the inode tells it from a later one with the same number."""

    fd: int
    inode: int


def describe(fd: int) -> Descriptor | None:
    """Return ``fd`` with the inode of its open file, or None if it is not open."""
    try:
        return Descriptor(fd, os.fstat(fd).st_ino)
    except OSError:
        return None


def all_sockets() -> set[Descriptor]:
    """Return the sockets of all kinds that this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            kind, _, inode = os.readlink(f"/proc/self/fd/{fd}").partition(":[")
            if kind == "socket":
                found.add(Descriptor(int(fd), int(inode[:-1])))
    return found


def peer(descriptor: Descriptor) -> tuple[str, int] | None:
    """Return host and port at the other end of a TCP connection, or None if it is none."""
    borrowed = _borrow(descriptor)
    if borrowed is None:
        return None
    with borrowed, contextlib.suppress(OSError):
        host, port = borrowed.getpeername()[:2]
        return host, port
    return None


def is_established(descriptor: Descriptor) -> bool:
    """Return whether it is a TCP connection that neither end has shut down."""
    borrowed = _borrow(descriptor)
    if borrowed is None:
        return False
    with borrowed:
        return borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED


def shut_down(descriptor: Descriptor) -> bool:
    """End a TCP connection for both directions; return whether it was one.

    All threads that wait on it return at once. Anything else is left alone: a socket that listens,
    a file, a descriptor whose number was reused.
    """
    borrowed = _borrow(descriptor)
    if borrowed is None:
        return False
    with borrowed:
        if _listens(borrowed):
            return False
        with contextlib.suppress(OSError):  # not connected any more
            borrowed.shutdown(socket.SHUT_RDWR)
        return True


def end_reading(descriptor: Descriptor) -> socket.socket | None:
    """End a TCP connection for its readers, after the data that has come.

    The other end notices nothing, even when the connection is closed, for as long as the caller
    keeps the duplicate that is returned.

    Returns:
        A duplicate, which is the caller's; None = it was no connection.

    Raises:
        OSError: there are too many descriptors for a duplicate.
    """
    borrowed = _borrow(descriptor)
    if borrowed is None:
        return None
    if _listens(borrowed):
        borrowed.close()
        return None
    with contextlib.suppress(OSError):  # not connected any more
        borrowed.shutdown(socket.SHUT_RD)
    return borrowed


def listening_address(descriptor: Descriptor) -> tuple[str, int] | None:
    """Return host and port at which a socket takes TCP connections, or None if it does not."""
    borrowed = _borrow(descriptor)
    if borrowed is None:
        return None
    with borrowed:
        if not _listens(borrowed):
            return None
        host, port = borrowed.getsockname()[:2]
        return host, port


def is_tcp_or_pipe(descriptor: Descriptor) -> bool:
    """Return whether it is a TCP socket, listening or not, or an end of a pipe."""
    try:
        if stat.S_ISFIFO(os.fstat(descriptor.fd).st_mode):
            return True
    except OSError:
        return False
    borrowed = _borrow(descriptor)
    if borrowed is None:
        return False
    borrowed.close()
    return True


def _listens(borrowed: socket.socket) -> bool:
    return bool(borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _borrow(descriptor: Descriptor) -> socket.socket | None:
    """Return a duplicate of a TCP socket that others may close at any moment, None = it is none.

    Duplicated first and looked at afterwards: what was looked at is what is used.

    Raises:
        OSError: there are too many descriptors.
    """
    try:
        duplicate = os.dup(descriptor.fd)
    except OSError as error:
        if error.errno == errno.EBADF:
            return None
        raise
    try:
        if os.fstat(duplicate).st_ino == descriptor.inode:
            borrowed = socket.socket(fileno=duplicate)
            duplicate = -1
            if borrowed.family in (socket.AF_INET, socket.AF_INET6) and (
                borrowed.type == socket.SOCK_STREAM
            ):
                return borrowed
            borrowed.close()
    except OSError:  # not a socket
        pass
    finally:
        if duplicate >= 0:
            os.close(duplicate)
    return None
