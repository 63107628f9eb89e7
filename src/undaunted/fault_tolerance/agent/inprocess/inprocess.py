"""The node's part in functions that are restarted inside its ranks' processes.

The agent is the guard of its ranks, and on a single node their controller, too; that of several
nodes runs where the job is led. A round has its own socket and its own controller. Before the
first rank connects there is only the socket: nothing is imported, and nothing runs.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from undaunted.base.text import count
from undaunted.fault_tolerance.agent.inprocess.leading import Controlling
from undaunted.fault_tolerance.agent.inprocess.notes import Notes
from undaunted.journal.events import RankLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.fault_tolerance.agent.round.round import Round
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.guard.host import ControllerHost
    from undaunted.inprocess.guard.ranks import ServedRank
    from undaunted.inprocess.guard.relay import RelayUplink
    from undaunted.inprocess.guard.service import GuardService
    from undaunted.inprocess.guard.uplink import Uplink

_BACKLOG = 1024
# How often a rank is replaced in a round: where it fails again and again, the fault is lasting.
REPLACEMENTS = 3


class InProcess:
    """Serves the ranks of one round after the other. See also `BesideFollower`."""

    def __init__(self, config: RunConfig, scribe: Scribe) -> None:
        self._config = config
        self._scribe = scribe
        self._round: Round | None = None
        self._listener: socket.socket | None = None  # until a service has it
        self._service: GuardService | None = None
        self._host: ControllerHost | None = None
        self._relay: RelayUplink | None = None
        self._connection: Connection | None = None  # to the leader
        self._stopping = False
        self._replaced: dict[int, list[ServedRank]] = {}  # by other processes

    def open(self) -> str:
        """Listen for ranks of a round that is about to begin; return the socket's name.

        It is abstract, so that nothing is left of it. Ranks of other rounds do not know it.

        Raises:
            OSError: there is no socket to be had.
        """
        self.close()
        name = f"undaunted-{os.urandom(16).hex()}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener = listener
        listener.bind(f"\0{name}")
        listener.listen(_BACKLOG)
        return name

    def begin_round(self, current: Round) -> None:
        """Serve whoever connects from now on."""
        assert self._listener is not None
        self._round, self._stopping = current, False
        asyncio.get_running_loop().add_reader(self._listener, self._first_rank)

    def begin_stop(self) -> None:
        """The round is stopped on all nodes: what ranks still do is of no interest."""
        self._stopping = True

    def goes_on_without(self, local_rank: int) -> bool:
        """Whether others go on with what they do together if this rank is lost.

        A node is healthy with all its ranks only, so that a job of one node has none to spare, but
        for those that come back. Of several nodes, the policy decides what becomes of the round.
        """
        config = self._config
        may_spare = config.nodes is not None or config.restart_lost_ranks
        if not (config.min_healthy and may_spare) or self._service is None or self._round is None:
            return False
        return self._service.in_call(self._round.rank(local_rank))

    def may_return(self, local_rank: int) -> bool:
        """Whether a process in the place of this rank, which has ended, could join the others.

        Not if it has ended before it took part, and three times at most.
        """
        if not self._config.restart_lost_ranks or not self.goes_on_without(local_rank):
            return False
        before = self._replaced.setdefault(local_rank, [])
        gone = self._joined(local_rank)
        if gone is None or len(before) == REPLACEMENTS:
            return False
        before.append(gone)
        return True

    def absent(self) -> frozenset[int]:
        """Return the local ranks whose new processes have not joined the others."""
        return frozenset(rank for rank in self._replaced if self._joined(rank) is None)

    def lost(self, local_rank: int, detail: str) -> None:
        """A rank is, and others go on without it."""
        assert self._round is not None
        rank = self._round.rank(local_rank)
        self._scribe.record(RankLost, rank=rank, detail=detail)
        self._scribe.say(
            f"rank {rank} (node {self._config.node}) is lost: {detail}; the function goes on "
            f"without it: the job is smaller than its {count(self._round.start.world_size, 'rank')}"
        )

    def close(self) -> None:
        """End the round: ranks that are still connected lose their guard."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        if self._service is not None:
            self._service.close()
        if self._host is not None:
            self._host.close()
        self._replaced.clear()
        self._listener = self._service = self._host = self._relay = self._round = None

    # --- several nodes (see `BesideFollower`) ---------------------------------------------------

    def linked(self, connection: Connection | None) -> None:
        """The way to the leader has changed."""
        self._connection = connection
        if self._relay is not None:
            self._relay.linked(connection)

    def received(self, aside: p.Aside) -> None:
        """The controller has said something."""
        if self._relay is not None:
            self._relay.received(aside)

    def beside_leader(self) -> Controlling:
        """Return the controller of the job, which this node leads from now on."""
        return Controlling(self._notes, self._scribe.say)

    # --- leaves ---------------------------------------------------------------------------------

    def _joined(self, local_rank: int) -> ServedRank | None:
        """Return the process of a rank if it has taken part and is not replaced."""
        assert self._service is not None
        assert self._round is not None
        process = self._service.rank(self._round.rank(local_rank))
        if process is None or process in self._replaced[local_rank]:
            return None
        return process if process.has_taken_part else None

    def _first_rank(self) -> None:
        """Make what serves the ranks of a round; it accepts the connection that has come."""
        from undaunted.inprocess.guard.service import GuardService

        listener, self._listener = self._listener, None
        assert listener is not None
        asyncio.get_running_loop().remove_reader(listener)
        self._service = GuardService(self._uplink(), self._scribe.say)
        self._service.listen(listener)

    def _uplink(self) -> Uplink:
        assert self._round is not None
        if self._config.nodes is not None:
            from undaunted.inprocess.guard.relay import RelayUplink

            self._relay = RelayUplink(self._round.number, self._scribe.say)
            self._relay.linked(self._connection)
            return self._relay
        from undaunted.inprocess.core.controller import Controller
        from undaunted.inprocess.guard.host import ControllerHost

        note = self._notes(self._round.number, self._round.start.world_size)
        # There are no connections that could be silent.
        self._host = ControllerHost(Controller(), silence_s=0.0, note=note)
        return self._host.local()

    def _notes(self, number: int, world_size: int) -> Callable[[Note], None]:
        notes = Notes(self._scribe, number, world_size)
        return lambda note: None if self._stopping else notes.take(note)
