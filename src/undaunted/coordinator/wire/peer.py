"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

_UCRED = struct.Struct("3i")  # pid, user, group


class Peer(NamedTuple):
    """A process: the one that has connected, or listens; of a socket pair, the one that made it.

    Attributes:
        pid: at that moment, in our namespace.
        user: its effective user id.
    """

    pid: int
    user: int


def peer(sock: socket.socket) -> Peer:
    """Return who is at the other end of a connected Unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, user, _ = _UCRED.unpack(credentials)
    return Peer(pid, user)


def check_own(sock: socket.socket) -> None:
    """Anybody may listen under a name of the abstract namespace.

    Raises:
        PermissionError: another user does.
    """
    user = peer(sock).user
    if user != os.geteuid():
        raise PermissionError(f"user {user} listens there")
