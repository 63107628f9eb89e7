"""What a process keeps between its calls: the connection to its guard, its page, its name."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

from undaunted.inprocess.guard.start import VARIABLE, guard_pid
from undaunted.inprocess.monitor_process import MonitorProcess
from undaunted.inprocess.rank.channel import Channel
from undaunted.inprocess.rank.forks import forget_in_children
from undaunted.inprocess.rank.page import Page

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

# Name the job and the rank. The wrapper writes the last two itself.
_NAMES = (
    VARIABLE,
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "RANK",
    "WORLD_SIZE",
)


class Connection:
    """Owns channel and page.

    Attributes:
        job_rank: ``RANK`` as the launcher has set it.
        job_size: ``WORLD_SIZE`` as the launcher has set it.
        rank: as assigned last.
        world_size: as assigned last.
        calls: how many calls have begun.
        guard: the process at the other end.
    """

    def __init__(self, sock: socket.socket, job_rank: int, job_size: int) -> None:
        self.guard = MonitorProcess(guard_pid(sock))
        self.channel = Channel(sock)
        self.page = Page()
        self.job_rank = self.rank = job_rank
        self.job_size = self.world_size = job_size
        self.calls = 0
        self._pid = os.getpid()
        self._key = _identity()
        forget_in_children(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process has made it, not one that was forked."""
        return self._pid == os.getpid()

    @property
    def usable(self) -> bool:
        """Whether it is of this process, and the environment still names the same job."""
        return self.is_ours and self._key == _identity()

    def keep(self, rank: int, world_size: int) -> None:
        """These were assigned, and the environment was changed accordingly."""
        self.rank, self.world_size = rank, world_size
        self._key = _identity()

    def close(self) -> None:
        """End it: the guard takes it for the end of this rank."""
        self.channel.close()
        self.page.close()

    def after_fork(self) -> None:
        """In a child: channel and page forget by themselves."""
        self._pid = -1


_current: list[Connection] = []  # at most one


def current() -> Connection | None:
    """Return this process's connection, None = there is none yet, or it is another job's."""
    return next((one for one in _current if one.usable), None)


def replace(make: Callable[[], Connection]) -> Connection:
    """Make a connection, in place of one there may be."""
    close()
    _current.append(make())
    return _current[0]


def close() -> None:
    """End the connection, if there is one of this process."""
    while _current:
        old = _current.pop()
        if old.is_ours:
            old.close()


def _identity() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in _NAMES)


atexit.register(close)
