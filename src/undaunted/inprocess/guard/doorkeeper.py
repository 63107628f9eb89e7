"""Keeps ranks of other jobs out, where no secret tells the jobs apart.

Without a token all ranks are on one machine. Two jobs with the same MASTER_PORT meet at the
controller of the first one, and the ranks of the second would pass for its ranks. Processes belong
to one job if they have the same parent or process group. Others are let in as well, as they may
have been started by hand, but later, so that the job's own ranks come first.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from undaunted.base.process import read_stat
from undaunted.base.timers import Timers
from undaunted.inprocess.core.messages import Dismissed, Enter, Resume
from undaunted.inprocess.guard.links import Lease, Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.inprocess.guard.host import ControllerHost

# A rank that may be of another job waits this long for the job's own ranks, seconds.
HOLD_S = 3.0


class Doorkeeper:
    """Handler of a server's connections; passes messages of the job's own guards to the host."""

    def __init__(
        self,
        host: ControllerHost,
        pid: int,
        world_size: int,
        *,
        say: Callable[[str], None],
        related: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Serve from now on.

        Args:
            host: of the controller.
            pid: of rank 0's process.
            world_size: number of ranks of the job.
            say: called with lines about ranks that are kept out.
            related: whether two processes seem to be of one job; None = as described above.
        """
        self._host = host
        self._world_size = world_size
        self._say = say
        self._related = related or _related
        self._pids = {0: pid}  # of the job's ranks
        self._held: dict[Connection, list[Any]] = {}  # messages of ranks that are held
        self._refused: set[Connection] = set()
        self._timers = Timers()

    def opened(self, connection: Connection) -> None:
        """A guard has connected."""
        self._host.opened(connection)

    def received(self, connection: Connection, message: Any) -> None:
        """A guard has sent a message."""
        if isinstance(message, Lease):
            self._host.received(connection, message)
        elif connection in self._held:
            self._held[connection].append(message)
        elif connection not in self._refused:
            self._judge(connection, message)

    def closed(self, connection: Connection, reason: str) -> None:
        """A guard's connection has ended."""
        self._held.pop(connection, None)
        self._refused.discard(connection)
        self._host.closed(connection, reason)

    def close(self) -> None:
        """Release the timers."""
        self._timers.cancel()

    def _judge(self, connection: Connection, message: Any, *, held: bool = False) -> None:
        enter = message.enter if isinstance(message, Resume) else message
        if isinstance(enter, Enter) and self._pids.get(enter.job_rank) != enter.pid:
            foreign = not self._related(enter.pid, self._pids[0])
            if self._is_taken(enter) and (foreign or self._complete):
                self._refuse(connection, enter)
                return
            if foreign and not held:
                self._hold(connection, message)
                return
            self._pids.setdefault(enter.job_rank, enter.pid)
        self._host.received(connection, message)
        if self._complete:
            self._let_in()

    def _is_taken(self, enter: Enter) -> bool:
        return enter.job_rank in self._pids or enter.world_size != self._world_size

    @property
    def _complete(self) -> bool:
        return len(self._pids) >= self._world_size

    def _refuse(self, connection: Connection, enter: Enter) -> None:
        known = self._pids.get(enter.job_rank)
        whose = f"process {known}" if known is not None else "no rank of it"
        text = (
            f"another job of this machine, with {self._world_size} ranks, uses the same "
            f"MASTER_PORT: rank {enter.job_rank} there is {whose}, this is process {enter.pid}, of "
            f"a job with {enter.world_size} ranks; give each job a MASTER_PORT of its own"
        )
        self._refused.add(connection)
        self._say(f"process {enter.pid} is kept out: {text}")
        told = Dismissed(enter.call, enter.job_rank, text)
        connection.send(Told((enter.job_rank,), told))

    def _hold(self, connection: Connection, message: Any) -> None:
        self._held[connection] = [message]
        self._timers.set(f"held {id(connection)}", HOLD_S, partial(self._let_in, connection))

    def _let_in(self, *connections: Connection) -> None:
        """Judge held messages again, of these connections or of all."""
        for connection in connections or tuple(self._held):
            for message in self._held.pop(connection, ()):
                if connection not in self._refused:
                    self._judge(connection, message, held=True)


def _related(pid: int, other: int) -> bool:
    """Whether both have the same parent or process group; True if that is unknown."""
    one, two = _family(pid), _family(other)
    if one is None or two is None:
        return True
    return one[0] == two[0] or (one[1] == two[1] and one[1] > 1)


def _family(pid: int) -> tuple[int, int] | None:
    """Return a process's group and parent."""
    stat = read_stat(pid)
    try:
        return None if stat is None else (os.getpgid(pid), stat.ppid)
    except ProcessLookupError:
        return None
