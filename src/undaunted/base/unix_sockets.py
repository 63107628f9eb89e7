"""Unix sockets with a file that only this user can connect to."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path


def listen_at(path: str, kind: socket.SocketKind, waiting: int) -> socket.socket:
    """Listen at a path; a socket that a process which was killed has left there is replaced.

    Args:
        path: of the socket's file; whoever closes the socket removes it.
        kind: ``SOCK_STREAM`` or ``SOCK_SEQPACKET``.
        waiting: how many connections may wait to be accepted.

    Raises:
        OSError: the path cannot be used.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is no socket; remove it or choose another")
        Path(path).unlink()
    listening = socket.socket(socket.AF_UNIX, kind)
    try:
        os.fchmod(listening.fileno(), 0o600)  # before it has a name, so never open to others
        listening.bind(path)
        listening.listen(waiting)
    except OSError:
        listening.close()
        raise
    return listening


def is_answered(path: str, kind: socket.SocketKind) -> bool:
    """Return whether somebody listens at a path."""
    with socket.socket(socket.AF_UNIX, kind) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except BlockingIOError:  # so many wait already that it would take a while
            return True
        except OSError:
            return False
    return True


def remove(path: str, listening: os.stat_result) -> None:
    """Remove the file of a socket, unless somebody else has put another one there.

    Args:
        path: of the file.
        listening: what was there when we began to listen.

    Raises:
        OSError: that is not possible.
    """
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (listening.st_dev, listening.st_ino):
            Path(path).unlink()
