"""A job in the simulator: machines, guards, ranks, what can be done to them, and the invariants."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

from simulator.run import InvariantError, World
from simulator.virtual import messages as s
from simulator.virtual.program import Program
from undaunted.coordinator.wire.connection import WireError
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.reading import Phase, Reading
from undaunted.inprocess.guard.controller_link import ControllerLink
from undaunted.inprocess.guard.host import ControllerHost, LocalConnection
from undaunted.inprocess.guard.service import GuardService

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.inprocess.setup import Setup
    from simulator.virtual.engine import Simulation
    from undaunted.coordinator.wire.connection import Connection, Handler
    from undaunted.inprocess.core import commands as c
    from undaunted.inprocess.guard.rank_process import Served

_MS = 1_000_000
_NS = 1_000_000_000
# What comes after the last fault.
_LAST_CALLS = 2
# What guards are told: the controller is here now, or somewhere else.
LEAD = "lead"
MOVED = "moved"
_PORT = 1
_FOR_EVER_S = 1e9
# After so long an agent looks again whether the guard of a rank knows that its process has ended.
_REAP_NS = 10_000_000
# How calls end for all; "dismissed", "left" and such are of one rank only.
_COMMON = frozenset({"finished", "abort", "barrier", "mismatch"})
# A rank that is told to stop does so in this time, unless something has happened to it.
_GRACE_NS = 2_000_000_000


class Cluster(World):
    """See the module's documentation.

    Attributes:
        checker: told of everything that the invariants are about.
        ranks: the newest process of every job rank.
        leader: where the controller is, or will be.
        quiet: no fault is to come.
        aims: called when a rank of that number changes its phase to that one, once.
    """

    def __init__(
        self, setup: Setup, seed: int, *, trace: Callable[[int, str, Any], None] | None = None
    ) -> None:
        """Boot the machines; every rank starts within two seconds."""
        super().__init__(seed, trace)
        self.setup = setup
        self.checker = Checker(setup, self.simulation)
        self.ranks: dict[int, Rank] = {}
        self.nodes: dict[str, Node] = {}
        self.leader = setup.nodes[0]
        self.quiet = False
        self.aims: dict[tuple[int, Phase], list[Callable[[Any], None]]] = {}
        self._last_call = -1
        self._pids = 0
        for name in setup.nodes:
            self.simulation.boot(name)
            node = self.nodes[name] = Node(self, name)
            self.simulation.start(name, node, name)
        self.simulation.tell(self.leader, LEAD)
        for job_rank in range(setup.ranks):
            self.simulation.at(self.between(0, 2 * _NS), self._start, job_rank)

    def between(self, low: int, high: int) -> int:
        """Return a random number, from ``low`` to ``high``."""
        return self.simulation.random.randint(low, high)

    # --- ranks ----------------------------------------------------------------------------------

    def _start(self, job_rank: int, *, rejoin: bool = False) -> None:
        node = self.setup.node_of(job_rank)
        if not self.simulation.is_alive(node):
            return
        before = self.nodes[node].service.rank(job_rank) if rejoin else None
        if before is not None and before.alive:
            self.after(_REAP_NS, lambda each: self._start(each, rejoin=True), job_rank)
            return
        self._pids += 1
        rank = self.ranks[job_rank] = Rank(self, job_rank, self._pids, rejoin=rejoin)
        self.checker.started(rank)
        self.simulation.start(rank.name, rank, node)

    def more_calls(self, call: int) -> bool:
        """Whether a rank calls the function once more after this call."""
        if not self.quiet:
            return True
        if self._last_call < 0:
            self._last_call = call + _LAST_CALLS
        return call < self._last_call

    def kill(self, job_rank: int) -> None:
        """End its process."""
        rank = self.ranks.get(job_rank)
        if rank is None or not self.simulation.is_alive(rank.name):
            return
        self.checker.gone(rank)
        self.simulation.kill(rank.name)
        if self.setup.rejoin and not self.quiet:
            delay_ns = self.between(10 * _MS, 10 * _NS)
            self.after(delay_ns, lambda each: self._start(each, rejoin=True), job_rank)

    def signal(self, rank: Rank, *, kill: bool) -> None:
        """Its guard ends it; a SIGTERM may not suffice."""
        if (kill or self.between(0, 1)) and self.ranks.get(rank.job_rank) is rank:
            self.after(0, self.kill, rank.job_rank)

    def phase_changed(self, rank: Rank) -> None:
        """Something may be waiting for this."""
        for action in self.aims.pop((rank.job_rank, rank.phase), []):
            self.after(self.between(0, 3 * _MS), action)

    def pause_rank(self, job_rank: int) -> None:
        """Stop it as SIGSTOP does."""
        rank = self.ranks.get(job_rank)
        if rank is not None and rank.frozen_ns is None:
            rank.frozen_ns = self.simulation.now
            self.simulation.pause(rank.name)

    def resume_rank(self, job_rank: int) -> None:
        """Let it go on."""
        rank = self.ranks.get(job_rank)
        if rank is not None and not rank.stuck:
            rank.frozen_ns = None
            self.simulation.resume(rank.name)

    # --- guards ---------------------------------------------------------------------------------

    def kill_node(self, name: str) -> None:
        """End a guard; under `undaunted run`, its ranks die with it."""
        if not self.simulation.is_alive(name):
            return
        self.simulation.kill(name)
        self._node_gone(name, ranks_die=self.setup.moves)

    def power_off(self, name: str) -> None:
        """Take a machine's power; nobody is told."""
        if not self.simulation.is_alive(name):
            return
        for rank in self._ranks_of(name):
            self.checker.gone(rank)
        self.simulation.power_off(name)
        self._node_gone(name, ranks_die=False)

    def _ranks_of(self, name: str) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.node == name]

    def _node_gone(self, name: str, *, ranks_die: bool) -> None:
        if ranks_die:
            for rank in self._ranks_of(name):
                self.checker.gone(rank)
                self.simulation.kill(rank.name)
        if name == self.leader and self.setup.moves:
            self.after(self.between(100 * _MS, 8 * _NS), self.move)

    def move(self, _argument: Any = None) -> None:
        """Another node leads, if any is left; the one that did has stood down."""
        alive = [name for name in self.setup.nodes if self.simulation.is_alive(name)]
        others = [name for name in alive if name != self.leader and self._can_lead(name, alive)]
        if not others:
            self.checker.touch_all()
            return
        before, self.leader = self.leader, others[self.between(0, len(others) - 1)]
        self.checker.takeovers += 1
        for name in alive:
            if name in {before, self.leader}:
                self.simulation.tell(name, LEAD if name == self.leader else MOVED)
            else:
                self.after(self.between(0, 500 * _MS), self._tell_moved, (name, self.leader))

    def _can_lead(self, name: str, alive: list[str]) -> bool:
        """Whether it runs, and reaches most of the others, who must agree."""
        if self.simulation.is_paused(name):
            return False
        reaches = self.simulation.reaches
        votes = sum(reaches(name, each) and reaches(each, name) for each in alive)
        return votes * 2 > len(alive)

    def _tell_moved(self, what: tuple[str, str]) -> None:
        name, leader = what
        if self.leader == leader:
            self.simulation.tell(name, MOVED)


class Node(Program):
    """A guard process with the ranks it serves, and the controller where it is there.

    Where the controller moves, every guard has a connection to it, as nodes have one to their
    leader, also in the process of the leader. Otherwise it is in the first guard for ever.

    Attributes:
        host: the controller and its links, None = it is elsewhere.
        service: serves the ranks.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(name, cluster.simulation.listens)
        self.name = name
        self.host: ControllerHost | None = None
        self.service = GuardService(self._say)
        self._cluster = cluster
        self._guards: dict[Connection, ControllerHost] = {}  # connections of other guards
        self._ranks: dict[Connection, _Process] = {}
        self._connection: Connection | None = None  # to the controller, if that is elsewhere
        self._leader = ""  # to which it is

    def started(self) -> None:
        """See `Program`."""
        self.listen(_PORT, self)
        if self._cluster.setup.moves or self._cluster.leader != self.name:
            self.loop.create_task(self._follow())

    async def _follow(self) -> None:
        """Keep a link to the controller; a guard in a process of its own ends with its rank."""
        limits = self._cluster.setup.limits
        link = ControllerLink(
            "the controller",
            self._connect,
            self.service,
            interval_s=limits.heartbeat_timeout / 10,
            silence_s=limits.silence_s,
            say=self._say,
        )
        await link.connected(_FOR_EVER_S)
        if not self._cluster.setup.moves:
            await self.service.idle()
            await link.close()
            self.exit()

    def told(self, what: Any) -> None:
        """The controller is here now, or somewhere else."""
        if self.host is not None:
            self.host.close()
            for connection in list(self._guards):
                connection.close("the controller is somewhere else")
            self.host = None
        if what == LEAD:
            limit_s = self._cluster.setup.limits.unreachable_s()
            self.host = ControllerHost(self._notes, self._say, silence_s=limit_s)
            if not self._cluster.setup.moves:
                LocalConnection(self.host, self.service)
        if self._connection is not None and self._leader != self._cluster.leader:
            self._connection.drop("the controller is somewhere else")

    async def _connect(
        self, _address: str, handler: Handler, *, longest: int, timeout_s: float
    ) -> Connection:
        leader = self._cluster.nodes[self._cluster.leader]
        if leader.host is None:
            raise WireError("nothing listens there yet")
        where = f"{leader.name}:{_PORT}"
        connection = await self.connect(where, handler, longest=longest, timeout_s=timeout_s)
        self._connection, self._leader = connection, leader.name
        return connection

    def _say(self, text: str) -> None:
        self._cluster.note(self.name, text)

    def _notes(self, _round: int, _world_size: int) -> Callable[[c.Note], None]:
        return lambda note: self._cluster.note("note", note)

    # --- connections of ranks and other guards --------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Somebody has connected, who says next what it is."""

    def received(self, connection: Connection, message: Any) -> None:
        """A rank has said something, or a guard."""
        if isinstance(message, m.FromRank):
            if isinstance(message, m.Enter) and connection not in self._ranks:
                self._serve(connection, message)
            if connection in self._ranks:
                self._ranks[connection].received(message)
        elif self.host is None:
            connection.close("the controller is somewhere else")
        else:
            self._guards[connection] = self.host
            self.host.received(connection, message)

    def _serve(self, connection: Connection, enter: m.Enter) -> None:
        rank = self._cluster.ranks[enter.job_rank]
        if rank.pid == enter.pid:  # it has not ended, and was replaced, before it was served
            process = self._ranks[connection] = _Process(self._cluster, self, connection, rank)
            self.service.watch(process)

    def closed(self, connection: Connection, reason: str) -> None:
        """A rank has ended, or the connection of a guard has."""
        if (process := self._ranks.pop(connection, None)) is not None:
            process.ended()
        elif (host := self._guards.pop(connection, None)) is not None:
            host.closed(connection, reason)


class _Process:
    """A rank as its guard sees it; see `RankProcess`."""

    def __init__(self, cluster: Cluster, node: Node, connection: Connection, rank: Rank) -> None:
        self.pid = rank.pid
        self._cluster, self._node = cluster, node
        self._connection: Any = connection
        self._rank = rank
        self._served: Served | None = None

    def serve(self, rank: Served) -> None:
        """See `RankProcess`."""
        self._served = rank

    def received(self, message: m.FromRank) -> None:
        """The rank has said something."""
        if self._served is not None:
            self._served.received(message)

    def ended(self) -> None:
        """Its machine has closed its connection."""
        if self._served is not None:
            self._served.ended()

    def take_page(self) -> bool:
        """See `RankProcess`."""
        return True

    def read(self) -> Reading:
        """See `RankProcess`."""
        return self._rank.read(self._node.loop.now)

    def state(self) -> str:
        """See `RankProcess`."""
        return "S"

    def send(self, message: m.ToRank) -> None:
        """See `RankProcess`."""
        self._connection.send(message)

    def signal(self, numbers: tuple[int, ...]) -> None:
        """See `RankProcess`."""
        self._cluster.signal(self._rank, kill=signal.SIGKILL in numbers)

    def close(self) -> None:
        """See `RankProcess`."""
        self._served = None
        self._connection.close("the guard has ended")


class Rank:
    """A training process: a small model of what `undaunted.inprocess.rank` does with messages.

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
        self._limits = cluster.setup.limits
        self._rejoin = rejoin
        self._call = -1
        self._rank, self._world_size = job_rank, cluster.setup.ranks
        self._ping_ns = 0
        self._deaf = False
        self._swallowed = False  # an interruption
        self._stopping = False  # it was told, and the function has not ended yet
        self._held = False  # the function is where no interruption comes
        self._dismissed = False  # the function does not know it yet
        self._stage = 0  # timers of an earlier one are over
        self._connection = -1
        self._commands: list[s.Command] = []
        self._now = 0

    def read(self, now: int) -> Reading:
        """The page of the rank, as its guard reads it."""
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
                self._commands.append(s.Connect("guard", f"{self.node}:{_PORT}", 10**10))
            case s.Connected(connection=connection):
                self._connection = connection
                self._enter()
            case s.Received(message=message) if self.phase is not Phase.OUTSIDE:
                self._hear(message)  # what is none of these opens the connection
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
            setup.limits,
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
        if not self._rejoin:
            self._wait(self._limits.barrier_timeout)

    def _wait(self, limit_s: float) -> None:
        """Set the limit to a wait that the controller should end before."""
        longest_ms = round(self._limits.longest_wait_s(limit_s) * 1000)
        self._later("patience", longest_ms, longest_ms)

    def _hear(self, message: m.ToRank) -> None:
        if self._held:
            return
        match message:
            case m.Record():
                self._begin(message)
            case m.Stop():
                if message.hang:
                    self._say(m.Evidence(message.call, self.job_rank, message.epoch, -1, b""))
                if self._deaf and self.phase is Phase.RUNNING:
                    self._swallowed = True
                else:
                    self._stopping = True
                    self._later("stopped", 1, 30)
            case m.Finished():
                self._out("finished", message.call)
                self._rejoin = False
                self._later("next", 1, 2000)
            case m.End(kind=kind):
                self._out(kind, message.call)
                self._later("exit", 1, 100)
            case m.Dismissed() if self._swallowed and self.phase is Phase.RUNNING:
                self._dismissed = True  # which it swallows, too
            case m.Dismissed():
                self._dismiss()

    def _dismiss(self) -> None:
        self._out("dismissed")
        self._later("exit", 1, 100)

    def _begin(self, record: m.Record) -> None:
        self.record, self._call = record, record.call
        self._rejoin = False
        self._ping_ns, self._deaf, self._swallowed, self._stopping = 0, False, False, False
        self._stage += 1  # the wait for the record is over; a reserve's next one has no limit
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
            self._later("work", 1000, self._cluster.setup.longest_ms)

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
            case "work" if self._dismissed:
                self._dismiss()
            case "work":
                self._rest(Phase.WAITING)
                self._say(m.Completed(self._call, self.job_rank, epoch))
                if self._swallowed:  # it has the verdict already
                    self._later("stopped", 1, 30)
                else:
                    self._wait(self._limits.completion_timeout)
            case "patience":
                self._out("patience")
                self._exit()
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
                self._ping_ns, self._held = self._now, self._stopping
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


class Checker:
    """The invariants. Told by the ranks what they do; raises `InvariantError`.

    Attributes:
        alive: processes of ranks.
        records: by call and epoch.
        ends: how many calls of ranks have ended how.
        takeovers: how often the controller has moved.
    """

    def __init__(self, setup: Setup, simulation: Simulation) -> None:
        self.alive: set[Rank] = set()
        self.records: dict[tuple[int, int], m.Record] = {}
        self.ends: Counter[str] = Counter()
        self.takeovers = 0
        self._setup = setup
        self._simulation = simulation
        self._running: dict[Rank, tuple[int, int]] = {}
        self._joined: dict[tuple[int, int], set[int]] = {}
        self._members: dict[tuple[int, int], dict[int, int]] = {}  # pids by job rank
        self._holders: dict[tuple[int, int], list[Rank]] = {}  # who has acted on a record
        self._first: dict[int, tuple[int, int]] = {}  # records, by pid
        self._out: set[int] = set()  # pids of those who have left, or were told to
        self._outcomes: dict[int, dict[tuple[str, int], list[Rank]]] = {}
        self._touched: dict[int, int] = {}  # until when, by job rank

    def touch(self, job_rank: int, until_ns: int) -> None:
        """Something happens to a rank, its guard or the controller: more than an exception."""
        self._touched[job_rank] = max(self._touched.get(job_rank, 0), until_ns)

    def touch_all(self) -> None:
        """There is no controller any more."""
        for job_rank in range(self._setup.ranks):
            self.touch(job_rank, self._simulation.now)

    def started(self, rank: Rank) -> None:
        """A process has started."""
        self.alive.add(rank)

    def gone(self, rank: Rank) -> None:
        """The process has ended."""
        self.alive.discard(rank)
        self.rests(rank)

    def joins(self, rank: Rank, call: int, epoch: int) -> None:
        """The rank says that nothing of the epoch before runs in it any more."""
        self._joined.setdefault((call, epoch), set()).add(rank.pid)

    def told(self, rank: Rank, record: m.Record) -> None:
        """The rank acts on a record."""
        key = (record.call, record.epoch)
        known = self.records.setdefault(key, record)
        holders = self._holders.setdefault(key, [])
        if known != record and any(each in self.alive for each in holders):
            self._fail(f"the same record everywhere: {rank.name} has {record}, others {known}")
        self.records[key] = record
        holders.append(rank)
        if rank.job_rank not in record.members:
            self._fail(f"the same record everywhere: {rank.name} is no member of {record}")
        if rank.pid in self._out:
            self._fail(f"terminated ranks never return: {rank.name} is in epoch {key}")
        if record.joined and not self._setup.rejoin:
            self._fail(f"terminated ranks never return: {record} has ranks that join")
        pids = self._members.setdefault(key, {})
        if pids.setdefault(rank.job_rank, rank.pid) != rank.pid:
            self._fail(f"no rank in two epochs: two processes of {rank.job_rank} are in {key}")
        self._earlier_members(rank, record)

    def _earlier_members(self, rank: Rank, record: m.Record) -> None:
        """A rank that was left out of a record does not come back."""
        key = (record.call, record.epoch)
        first = self._first.setdefault(rank.pid, key)
        for other, between in self.records.items():
            if first < other < key and rank.job_rank not in between.members:
                self._fail(f"terminated ranks never return: {rank.name} was not in {between}")

    def runs(self, rank: Rank, record: m.Record) -> None:
        """The rank enters the function."""
        key = (record.call, record.epoch)
        self._running[rank] = key
        for other, its in self._running.items():
            if its != key and not self._excused(other) and not self._excused(rank):
                self._fail(
                    f"no rank in two epochs: {rank.name} runs {key}, {other.name} still {its}"
                )
        if not record.joined:
            self._all_have_joined(rank, record)

    def _all_have_joined(self, rank: Rank, record: m.Record) -> None:
        joined = self._joined.get((record.call, record.epoch), set())
        pids = {each.pid: each for each in self.alive if each.job_rank in record.members}
        for pid, other in pids.items():
            replaced = other.job_rank in self._out_of(record)
            if pid not in joined and not replaced and not self._excused(other):
                self._fail(
                    f"nobody runs before all have joined: {rank.name} runs epoch {record.epoch} of "
                    f"call {record.call}, which {other.name} has not joined"
                )

    def _out_of(self, record: m.Record) -> set[int]:
        """Job ranks that have a process which is not the one that the record means."""
        return {each.job_rank for each in self.alive if each.pid in self._out} | (
            set(range(self._setup.ranks)) if self._setup.rejoin else set()
        ) - set(record.terminated)

    def rests(self, rank: Rank) -> None:
        """The function does not run in it any more."""
        self._running.pop(rank, None)

    def verdict(self, rank: Rank, call: int, epoch: int, how: str) -> None:
        """A call is over for a rank."""
        self.ends[how] += 1
        if how in _COMMON:
            mine = (how, epoch if how == "finished" else -1)
            outcomes = self._outcomes.setdefault(call, {})
            outcomes.setdefault(mine, []).append(rank)
            for other, ranks in outcomes.items():
                living = [each.name for each in ranks if each in self.alive]
                if other != mine and living:
                    self._fail(
                        f"one verdict: call {call} ended as {mine} for {rank.name}, as {other} for "
                        f"{', '.join(living)}"
                    )
        else:
            self._out.add(rank.pid)
        if how == "patience" and not self._excused(rank):
            self._fail(f"every wait ends: {rank.name} has waited in vain, and leaves")
        if how == "dismissed" and rank.job_rank not in self._touched:
            self._fail(f"no healthy rank is lost: {rank.name} was {how}, and had no fault")

    def _excused(self, rank: Rank) -> bool:
        """Whether it stands still, or did lately, or nobody could have told it.

        One that is stuck holds the interpreter, and the function goes on: its guard ends it.
        """
        until = self._touched.get(rank.job_rank, -_GRACE_NS)
        still = rank.frozen_ns is not None
        if rank.stuck:
            still = not self._simulation.is_alive(rank.node)
        return still or until + _GRACE_NS >= self._simulation.now

    def _fail(self, text: str) -> None:
        raise InvariantError(text)
