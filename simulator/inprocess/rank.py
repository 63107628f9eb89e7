"""A training process: a small model of what `undaunted.inprocess.rank` does with messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.inprocess.setup import LIMITS
from simulator.virtual import messages as s
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.reading import Phase, Reading

if TYPE_CHECKING:
    from simulator.inprocess.cluster import Cluster

_MS = 1_000_000


class Rank:
    """See the module's documentation.

    Attributes:
        name: of its process in the simulation.
        job_rank: its name in the job.
        pid: tells processes of one job rank apart.
        record: of the epoch it is in, None = none in this call yet.
        phase: what its main thread does.
        frozen_ns: since when it stands still, None = it does not.
        stuck: it never goes on.
    """

    def __init__(self, cluster: Cluster, job_rank: int, pid: int, *, rejoin: bool) -> None:
        self.name = f"r{job_rank}.{pid}"
        self.job_rank, self.pid = job_rank, pid
        self.record: m.Record | None = None
        self.phase = Phase.OUTSIDE
        self.frozen_ns: int | None = None
        self.stuck = False
        self.node = cluster.setup.node_of(job_rank)
        self._cluster = cluster
        self._rejoin = rejoin
        self._call = -1
        self._rank, self._world_size = job_rank, cluster.setup.ranks
        self._ping_ns = 0
        self._deaf = False
        self._stage = 0  # timers of an earlier one are over
        self._connection = -1
        self._commands: list[s.Command] = []
        self._now = 0

    def read(self, now: int) -> Reading:
        """Its page."""
        return Reading(
            auto_ns=now if self.frozen_ns is None else self.frozen_ns,
            ping_ns=self._ping_ns,
            phase=self.phase,
            call=self._call,
            epoch=-1 if self.record is None else self.record.epoch,
            rank=self._rank,
        )

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
        if self.stuck:
            return []
        self._commands, self._now = [], now
        match event:
            case s.Started():
                self._commands.append(s.Connect("guard", f"{self.node}:2", 10**10))
            case s.Connected(connection=connection):
                self._connection = connection
                self._enter()
            case s.Received(message=message) if self.phase is not Phase.OUTSIDE:
                self._hear(message)
            case s.TimerFired(name=name):
                what, _, stage = name.partition(" ")
                if int(stage) == self._stage:
                    self._continue(what)
            case s.Told(what=what):
                self._suffer(str(what))
            case s.Closed() | s.ConnectFailed():
                self._out("guard")
                self._exit()
        return self._commands

    # --- a call ---------------------------------------------------------------------------------

    def _enter(self) -> None:
        self._call = 0 if self._rejoin else self._call + 1
        self.record = None
        setup = self._cluster.setup
        enter = m.Enter(
            self._call,
            self.job_rank,
            setup.ranks,
            self.pid,
            self.node,
            LIMITS,
            rejoin=self._rejoin,
        )
        self._rank, self._world_size = self.job_rank, setup.ranks
        self._say(enter)
        self._join(0)

    def _join(self, epoch: int) -> None:
        rank = -1 if self._rejoin else self._rank
        self._set_phase(Phase.WAITING)
        self._cluster.checker.joins(self, self._call, epoch)
        self._say(m.Join(self._call, self.job_rank, epoch, rank, self._world_size))

    def _hear(self, message: m.ToRank) -> None:
        match message:
            case m.Record():
                self._begin(message)
            case m.Stop():
                if not self._deaf:
                    self._later("stopped", 1, 30)
            case m.Finished():
                self._out("finished", message.call)
                self._rejoin = False
                self._later("next", 1, 2000)
            case m.End(kind=kind):
                self._out(kind, message.call)
                self._later("exit", 1, 100)
            case m.Dismissed():
                self._out("dismissed")
                self._later("exit", 1, 100)

    def _begin(self, record: m.Record) -> None:
        self.record, self._call = record, record.call
        self._rejoin = False
        self._ping_ns, self._deaf = 0, False
        self._cluster.checker.told(self, record)
        if not self._assign(record):
            reason = m.Reason("BASE_EXCEPTION", self.job_rank, text="discarded")
            self._say(m.Leave(self._call, self.job_rank, record.epoch, reason, discarded=True))
            self._out("discarded")
            self._later("exit", 1, 20_000)
        elif self._rank >= self._world_size - self._cluster.setup.reserves > 0:
            self._say(m.Completed(self._call, self.job_rank, record.epoch, reserve=True))
        else:
            self._set_phase(Phase.RUNNING)
            self._cluster.checker.runs(self, record)
            self._later("work", 1000, 6000)

    def _assign(self, record: m.Record) -> bool:
        """Shift ranks; return whether there is one for this process."""
        gone = set(record.terminated)
        if self._cluster.setup.pairs:
            gone |= {rank ^ 1 for rank in gone if rank ^ 1 < record.world_size}
        before = record.joined.get(self.job_rank, self._rank)
        self._world_size = record.world_size - len(gone)
        self._rank = before - sum(rank < before for rank in gone)
        return before not in gone

    def _continue(self, what: str) -> None:
        epoch = -1 if self.record is None else self.record.epoch
        match what:
            case "work":
                self._rest(Phase.WAITING)
                self._say(m.Completed(self._call, self.job_rank, epoch))
            case "stopped":
                self._rest(Phase.RECOVERING)
                self._later("finalize", 1, 30)
            case "finalize":
                self._join(epoch + 1)
            case "next" if self._cluster.more_calls(self._call):
                self._enter()
            case _:
                self._exit()

    # --- faults ---------------------------------------------------------------------------------

    def _suffer(self, fault: str) -> None:
        if self.phase is Phase.OUTSIDE:
            return
        epoch = 0 if self.record is None else self.record.epoch
        match fault:
            case "raise" if self.phase is Phase.RUNNING:
                self._rest(Phase.WAITING)
                reason = m.Reason("EXCEPTION", self.job_rank, self._rank, "it raises")
                self._say(m.Fault(self._call, self.job_rank, epoch, reason))
            case "leave":
                reason = m.Reason("BASE_EXCEPTION", self.job_rank, self._rank, "it leaves")
                self._say(m.Leave(self._call, self.job_rank, epoch, reason))
                self._out("left")
                self._later("exit", 1, 20_000)
            case "block" if self.phase is Phase.RUNNING:
                self._stage += 1
                self._ping_ns = self._now
            case "swallow":
                self._deaf = True
            case "stick":
                self.stuck, self.frozen_ns = True, self._now

    # --- leaves ---------------------------------------------------------------------------------

    def _exit(self) -> None:
        self._cluster.checker.gone(self)
        self._commands.append(s.Exit())

    def _rest(self, phase: Phase) -> None:
        """The function does not run any more."""
        self._stage += 1
        self._set_phase(phase)
        self._cluster.checker.rests(self)

    def _out(self, verdict: str, call: int = -1) -> None:
        self._rest(Phase.OUTSIDE)
        epoch = -1 if self.record is None else self.record.epoch
        self._cluster.checker.verdict(self, call, epoch, verdict)

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self._cluster.phase_changed(self)

    def _later(self, what: str, low_ms: int, high_ms: int) -> None:
        self._stage += 1
        delay_ns = self._cluster.between(low_ms * _MS, high_ms * _MS)
        self._commands.append(s.SetTimer(f"{what} {self._stage}", delay_ns))

    def _say(self, message: m.FromRank) -> None:
        self._commands.append(s.Send(self._connection, message))
