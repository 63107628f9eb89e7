"""Pages, stack pipes and the template: made before the event loop, closed by the agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.descriptors import identity, move_high

if TYPE_CHECKING:
    import socket

    from undaunted.fault_tolerance.pulse import Pulse
    from undaunted.fault_tolerance.worker.spawner import Spawner
    from undaunted.progress.area import PageArea

_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Begun:
    """Made by `start`; `Agent` owns it from then on."""

    area: PageArea
    pipes: StackPipes
    signals: StackPipes  # that ranks have got
    spawner: Spawner
    environment: dict[str, str]  # what the environments of all ranks have in common
    metrics: socket.socket | None = None  # where they are served
    pulse: Pulse | None = None  # for the front, where other nodes may go on without this one


class StackPipes:
    """One pipe per local rank, for the life of the agent; faulthandler writes to it.

    Into others Python writes the numbers of signals that a rank gets and has a handler for.

    The writing end does not block: a rank is never held up by a reader, it loses its dump.
    """

    def __init__(self, ranks: int, pipe_bytes: int = _PIPE_BYTES) -> None:
        self._read: list[int] = []
        self.write: list[int] = []
        for _ in range(ranks):
            read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            write = move_high(write)
            self._read.append(read)
            self.write.append(write)
            with contextlib.suppress(OSError):  # the user's quota: a long dump is cut at 64 KiB
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, pipe_bytes)

    def read_fd(self, local_rank: int) -> int:
        """The reading end."""
        return self._read[local_rank]

    def is_open_in(self, local_rank: int, pid: int) -> bool:
        """Return whether a process still has the writing end, under the given number."""
        fd = self.write[local_rank]
        return identity(fd) == identity(fd, pid)

    def drain(self, local_rank: int) -> bytes:
        """Everything in the pipe now."""
        chunks = []
        try:
            while chunk := os.read(self._read[local_rank], _READ_BYTES):
                chunks.append(chunk)
        except BlockingIOError:
            pass
        return b"".join(chunks)

    def close(self) -> None:
        """Close all ends."""
        for fd in (*self._read, *self.write):
            os.close(fd)
