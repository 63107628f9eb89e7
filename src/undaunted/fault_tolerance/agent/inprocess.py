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

from undaunted.base.text import one_line
from undaunted.fault_tolerance.agent.parts import Part
from undaunted.journal.events import InProcessCall, InProcessPhase, RankLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.core.messages import Reason
    from undaunted.inprocess.guard.host import ControllerHost
    from undaunted.inprocess.guard.service import GuardService, ServedRank
    from undaunted.journal.writer import JournalWriter

_BACKLOG = 1024
# How often a rank is replaced in a round: where it fails again and again, the fault is lasting.
REPLACEMENTS = 3
_REASONS = 8  # that are journaled
_LONGEST_REASON = 600  # characters


class InProcess(Part):
    """Serves the ranks of one round after the other. See also `BesideFollower`."""

    def __init__(
        self, config: RunConfig, journal: JournalWriter, say: Callable[[str], None]
    ) -> None:
        self._config = config
        self._journal = journal
        self._say = say
        self._round: Round | None = None
        self._listener: socket.socket | None = None  # until a service has it
        self._service: GuardService | None = None
        self._host: ControllerHost | None = None
        self._connection: Connection | None = None  # to the leader
        self._stopping = False
        self._replaced: dict[int, list[ServedRank]] = {}  # by other processes

    def listen(self) -> str:
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

    def round_begins(self, current: Round) -> None:
        """Serve all connections from now on."""
        assert self._listener is not None
        self._round, self._stopping = current, False
        asyncio.get_running_loop().add_reader(self._listener, self._first_rank)

    def begin_stop(self) -> None:
        """The round is stopped on all nodes: what ranks still do is of no interest."""
        self._stopping = True

    def goes_on_without(self, local_rank: int) -> bool:
        """Return whether others go on with what they do together if this rank is lost.

        A node is healthy only with all its ranks, so that a job of one node can spare none except
        ranks that come back. With several nodes, the policy decides what becomes of the round.
        """
        config = self._config
        may_spare = config.nodes is not None or config.restart_lost_ranks
        if not (config.min_healthy and may_spare) or self._service is None or self._round is None:
            return False
        return self._service.in_call(self._round.rank(local_rank))

    def may_return(self, local_rank: int) -> bool:
        """Return whether a process in the place of this ended rank could join the others.

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

    def killed(self, local_rank: int) -> str:
        """Return why the guard of a rank has ended its process; "" = it has not."""
        if self._service is None or self._round is None:
            return ""
        process = self._service.rank(self._round.rank(local_rank))
        return "" if process is None else process.killed

    def absent(self) -> frozenset[int]:
        """Return the local ranks whose new processes have not joined the others."""
        return frozenset(rank for rank in self._replaced if self._joined(rank) is None)

    def lost(self, local_rank: int, detail: str) -> None:
        """A rank is lost, and the others go on without it."""
        assert self._round is not None
        rank = self._round.rank(local_rank)
        self._journal.record(RankLost(round=self._round.number, rank=rank, detail=detail))

    def round_ends(self) -> None:
        """See `close`."""
        self.close()

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
        self._listener = self._service = self._host = self._round = None

    # --- several nodes (see `BesideFollower`) ---------------------------------------------------

    def linked(self, connection: Connection | None) -> None:
        """The way to the leader has changed."""
        self._connection = connection
        if self._service is not None:
            self._link(self._service)

    def received(self, aside: p.Aside) -> None:
        """The controller has said something."""
        if self._service is not None:
            self._service.received(aside)

    def beside_leader(self) -> ControllerHost:
        """Return the controller of the job, which this node leads; its first rank is in a call."""
        from undaunted.inprocess.guard.host import ControllerHost

        return ControllerHost(self._notes, self._say)

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
        assert self._round is not None
        asyncio.get_running_loop().remove_reader(listener)
        self._service = GuardService(self._say, self._round.number)
        if self._config.nodes is not None:
            self._link(self._service)
        else:
            self._control(self._service)
        self._service.listen(listener)

    def _link(self, service: GuardService) -> None:
        service.linked(None if self._connection is None else self._connection.send)

    def _control(self, service: GuardService) -> None:
        """Make the controller of a job of one node."""
        from undaunted.inprocess.guard.host import ControllerHost, LocalConnection

        self._host = ControllerHost(self._notes, self._say)
        LocalConnection(self._host, service)

    def _notes(self, number: int, world_size: int) -> Callable[[Note], None]:
        notes = Notes(self._journal, number, world_size)
        return lambda note: None if self._stopping else notes.take(note)


class Notes:
    """Makes entries of the journal out of what one controller of a round notes.

    Args:
        journal: gets the entries.
        round: which one it is about; the node may take no part in it.
        world_size: ranks of the job.
    """

    def __init__(
        self,
        journal: JournalWriter,
        round: int,  # noqa: A002
        world_size: int,
    ) -> None:
        self._journal = journal
        self._round = round
        self._world_size = world_size
        self._members = 0  # of the epoch that is on

    def take(self, note: Note) -> None:
        """Note something."""
        if note.what == "stopped":
            after, reasons = note.epoch + 1, _lines(note.reasons)
            self._phase(note, "detect", note.took_s, epoch=after, reasons=reasons)
            return
        if note.what == "recorded":
            self._members = len(note.members)
            if note.epoch > 0:
                self._restarted(note)
                return
        what = "begun" if note.what == "recorded" else note.what
        self._journal.record(
            InProcessCall(
                round=self._round,
                call=note.call,
                epoch=note.epoch,
                what=what,
                members=self._members,
                text=note.text,
            )
        )

    def _restarted(self, note: Note) -> None:
        known_s = 0.0
        for phase, (took_s, rank) in note.phases.items():
            known_s += took_s
            self._phase(note, phase, took_s, rank=rank)
        self._phase(note, "agree", max(0.0, note.took_s - known_s), rank=note.last)
        lost = sorted(set(range(self._world_size)) - {*note.members})
        ranks, reasons = len(note.members), _lines(note.reasons)
        self._phase(note, "re-enter", note.took_s, members=ranks, lost=lost, reasons=reasons)

    def _phase(
        self,
        note: Note,
        phase: str,
        took_s: float,
        *,
        epoch: int = -1,
        rank: int = -1,
        members: int = 0,
        lost: Sequence[int] = (),
        reasons: Sequence[str] = (),
    ) -> None:
        self._journal.record(
            InProcessPhase(
                round=self._round,
                call=note.call,
                epoch=note.epoch if epoch < 0 else epoch,
                phase=phase,
                took_s=round(took_s, 6),
                rank=rank,
                members=members,
                lost=list(lost),
                reasons=list(reasons),
            )
        )


def _lines(reasons: tuple[Reason, ...]) -> list[str]:
    return [_line(reason) for reason in reasons[:_REASONS]]


def _line(reason: Reason) -> str:
    who = "" if reason.named else f"rank {reason.job_rank}: "
    place = f", in {one_line(reason.where)}" if reason.where else ""
    return one_line(f"{who}{reason.text or reason.kind}", longest=_LONGEST_REASON) + place
