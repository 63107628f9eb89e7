"""A program of ours that the agent asks over a socket: what it calls may hang or crash."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Mapping


class ChildProgram:
    """The program, running. The agent reaps it like every child.

    Args:
        path: of the program, which uses Python's own library only; its argument is a descriptor of
            the socket's other end.
        environ: its environment.

    Attributes:
        sock: this end of the socket; does not block.
        pid: of its process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, path: str, environ: Mapping[str, str]) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        with theirs:
            command = process.script_command(path, str(theirs.fileno()))
            try:
                self.pid = process.spawn(command, environ, (theirs.fileno(),))
            except OSError:
                self.sock.close()
                raise
        self._pidfd = process.open_pidfd(self.pid)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._pidfd is not None and not process.wait_pidfd(self._pidfd, 0)

    def kill(self) -> None:
        """End it, and read nothing more from it; `release` follows."""
        self.sock.close()
        if self._pidfd is not None:
            process.signal_pidfd(self._pidfd, signal.SIGKILL)

    def reap(self) -> bool:
        """Return whether it has ended, after `kill`; then nothing is held any more."""
        if self.is_alive():
            return False
        self.release()
        return True

    def release(self) -> None:
        """Hold nothing any more, whether it has ended or not."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
