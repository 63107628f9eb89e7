"""A job in the simulator: machines, agents with their ranks and leaders, what can be done to them.

What the shell does in a real process, sockets and timers, is done here for the same cores.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from simulator.coordination.invariants import Checker
from simulator.coordination.setup import (
    AWAY_TIMEOUT_S,
    COORDINATOR,
    GIVE_UP_S,
    LASTS,
    LEASE_S,
    PORT,
    RUN_ID,
    Setup,
    address_of,
)
from simulator.etcd.grpc import Grpc
from simulator.etcd.members import Agreed, Member
from simulator.run import InvariantError, World
from simulator.virtual import messages as s
from simulator.virtual.program import Program
from undaunted.base.timers import Timers
from undaunted.coordinator import protocol as p
from undaunted.coordinator.etcd.client import Client
from undaunted.coordinator.etcd.store import Access, parse_store
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.follower import Follower, FollowerState
from undaunted.coordinator.lead.leader import Leader, LeaderState
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.messages import Iterations
from undaunted.coordinator.service.asking import left_behind
from undaunted.coordinator.service.leading import Leading
from undaunted.coordinator.service.participant import Participant
from undaunted.fault_tolerance.agent import node as n
from undaunted.fault_tolerance.agent.node import Node, State
from undaunted.fault_tolerance.agent.shared_orders import SharedOrders
from undaunted.fault_tolerance.agent.surroundings import Surroundings
from undaunted.fault_tolerance.agent.tasks import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.policy.config import PolicyConfig
    from undaunted.coordinator.service.ledger_file import LedgerFile
    from undaunted.coordinator.service.register import Register
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.network import Network
    from undaunted.fault_tolerance.agent.inprocess import InProcess
    from undaunted.fault_tolerance.nodes_config import Nodes

_MS = 1_000_000
_NS = 1_000_000_000
# How many peers of a rank that ended notice by themselves, and end as well.
_PEERS = 2
# How long a node looks at its ranks; and where it takes too long, as that of a few does.
_EVIDENCE_NS = 50 * _MS, 1600 * _MS
_LATE_NS = 1600 * _MS, 5 * _NS
_LATE_EVIDENCE = 0.05
_SIGKILL = 9
# Share of ranks that do not react to SIGTERM: they wait for a peer in communication.
_ITERATION_NS = 50_000_000
_DEAF = 0.3


class Confirmed(Protocol):
    """See `Cluster.on_confirmed`."""

    def __call__(self, leader: str, node: str, *, last: bool) -> bool:
        """Return whether it need not be called again."""


class Cluster(World):
    """See the module's documentation.

    Attributes:
        checker: told of everything that the invariants are about.
        agents: the newest incarnation on every machine that has had one.
        disks: by machine, the ledger that was written last.
        on_confirmed: called when a leader has heard that a node knows a table, with the machine of
            the leader, the node, and whether that was the last of the table; those that return
            True are not called again.
    """

    def __init__(
        self, setup: Setup, seed: int, *, trace: Callable[[int, str, Any], None] | None = None
    ) -> None:
        """Boot the machines; every launcher starts within two seconds.

        Args:
            setup: the job.
            seed: decides all that is left to chance.
            trace: told of every event and remark: time, who, what.
        """
        super().__init__(seed, trace)
        self.setup = setup
        self.checker = Checker(setup, self.simulation)
        self.agents: dict[str, Agent] = {}
        self.on_confirmed: list[Confirmed] = []
        self.done = False  # ranks have no more work
        self.disks: dict[str, p.Ledger] = {}
        self._incarnations = 0
        self._random = self.simulation.random
        self._etcd = Agreed(self.simulation, self._written_in_etcd)
        for member in setup.etcd_members:
            self.simulation.boot(member)
            self.start_member(member)
        if setup.standalone:
            self.simulation.boot(COORDINATOR)
            self.start_coordinator()
        for name in setup.names:
            self.simulation.boot(name)
            self.simulation.at(self.between(0, 2 * _NS), self.launch, name)

    @property
    def machines(self) -> set[str]:
        """Every machine there has been."""
        alone = [COORDINATOR] if self.setup.standalone else []
        return {*self.agents, *self.setup.names, *alone, *self.setup.etcd_members}

    def _written_in_etcd(self, before: bytes, now: bytes) -> None:
        """A value in etcd is replaced: perhaps it is the ledger."""
        known, ledger = (_decoded(value) for value in (before, now))
        if known is not None and ledger is not None and known.run_id and ledger.run_id:
            self.checker.replaced(known, ledger)

    # --- machines -------------------------------------------------------------------------------

    def launch(self, name: str) -> None:
        """Start a launcher, unless one runs already or the machine has no power."""
        if self.simulation.is_alive(name) or not self.simulation.has_power(name):
            return
        agent = self.agents[name] = Agent(self, name, self._incarnation())
        self.simulation.start(name, agent, name)
        self.checker.launched(agent.seat)

    def occupy(self, name: str, until_ns: int) -> None:
        """Let something else have a launcher's port up to a moment; it says nothing there."""
        other = f"{name} other"
        self.simulation.start(other, _Silent(address_of(name)), name)
        self.simulation.at(until_ns, self.simulation.kill, other)

    def start_coordinator(self) -> None:
        """Start the coordinator that has a host of its own, or start it again."""
        if self.simulation.is_alive(COORDINATOR) or self.checker.over_ns:
            return
        coordinator = Coordinator(self, self._incarnation())
        self.simulation.start(COORDINATOR, coordinator, COORDINATOR)

    def start_member(self, name: str) -> None:
        """Start a member of etcd, or start it again; it knows what the others have agreed on."""
        if self.simulation.has_power(name) and not self.simulation.is_alive(name):
            self._etcd.still.discard(name)
            self.simulation.start(name, Member(name, self.simulation, self._etcd), name)

    def stop_member(self, name: str) -> None:
        """Have a member of etcd stand still."""
        self.simulation.pause(name)
        self._etcd.still.add(name)

    def let_member_go_on(self, name: str) -> None:
        """Let it go on."""
        self._etcd.still.discard(name)
        self.simulation.resume(name)

    def kill(self, name: str) -> None:
        """Kill a launcher; its ranks die with it, its connections are closed."""
        self.simulation.kill(name)
        self._gone(name)

    def power_off(self, name: str, *, disk_lost: bool = False) -> None:
        """Take a machine's power; nobody is told. It may have another, empty disk afterwards."""
        self.simulation.power_off(name)
        if disk_lost and not self.setup.etcd:
            self.disks.pop(name, None)
            self.checker.disk_lost = True
        self._gone(name)

    def _gone(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is None:
            return
        self.checker.gone(agent.seat)
        if agent.ranks is not None:
            self.peers_notice(agent.ranks)
            agent.ranks.vanish()

    def pause(self, name: str) -> register.Voter | None:
        """Stop a machine: launcher and ranks stand still, and go on as if nothing had been.

        Return which agent that concerns, None = there is none.
        """
        self.simulation.pause(name)
        agent = self.agents.get(name)
        if agent is None:
            return None
        self.checker.paused(agent.seat)
        return agent.seat

    def resume(self, name: str, seat: register.Voter | None) -> None:
        """Let it go on; ``seat``: the agent that was there when it was stopped."""
        self.simulation.resume(name)
        if seat is not None:
            # By then it has asked its leader whether the job has gone on.
            asks_s = LASTS.asks_after_pause_s
            self.after(round(asks_s * _NS) + _NS // 2, self.checker.resumed, seat)

    def finish(self) -> None:
        """From now on the work is done: ranks end with 0."""
        self.done = True
        for agent in self.agents.values():
            if agent.ranks is not None:
                self._finish_ranks(agent.ranks)

    def _finish_ranks(self, ranks: Ranks) -> None:
        for rank in sorted(ranks.alive):
            ranks.end_later(rank, 0, self.between(100 * _MS, 600 * _MS))

    # --- what agents, leaders and ranks ask for -------------------------------------------------

    def tell(self, agent: Agent, what: Any) -> None:
        """Tell this very incarnation something, if it lives."""
        if self.agents.get(agent.name) is agent:
            self.simulation.tell(agent.name, what)

    def ranks_are_up(self, ranks: Ranks) -> None:
        """All ranks of a node run."""
        if self.done:
            self._finish_ranks(ranks)

    def peers_notice(self, ranks: Ranks) -> None:
        """A rank has ended: some of its peers fail in communication a little later."""
        for other in self._some_peers(ranks):
            other.end_later(0, 1, self.between(50 * _MS, 2 * _NS), victim=True)

    def peers_wait(self, ranks: Ranks, delay_ns: int) -> None:
        """A rank hangs: some of its peers pass their limits, too, about when it does."""
        for other in self._some_peers(ranks):
            other.pass_limit(0, delay_ns + self.between(-500 * _MS, 2 * _NS))

    def _some_peers(self, ranks: Ranks) -> list[Ranks]:
        running = [
            agent.ranks
            for agent in self.agents.values()
            if agent.ranks is not None
            and agent.ranks is not ranks
            and agent.ranks.round == ranks.round
            and agent.ranks.alive
            and self.simulation.reaches(ranks.agent.name, agent.name)
        ]
        return self._random.sample(running, min(_PEERS, len(running)))

    def ended(self, agent: Agent, reason: str) -> None:
        """The job is over for an agent."""
        self.note(agent.name, f"ends as {agent.outcome}: {reason}")
        by = agent.follower.leader.partition(":")[0]
        unbegun = agent.knows_round < 0 and bool(why_beyond_help(self))
        birth = agent.follower.knows.ledger.birth
        if self.checker.ended(agent.seat, agent.outcome, reason, by, unbegun=unbegun, birth=birth):
            epoch, others = agent.follower.knows.epoch, self.agents.values()
            self.checker.followed = {each.seat for each in others if each.follows == epoch}
            lost = {each.name for each in others if _cannot_hear_the_end(each, self)}
            self.checker.cut_off_for_good |= lost
        if agent.outcome == "gave up" and "the job has ended" not in reason:
            well = self.checker.untouched_for(agent.name, GIVE_UP_S)
            if well and not self.checker.over_ns and not why_beyond_help(self):
                text = f"{agent.name} gives up ({reason}), and had no reason to"
                raise InvariantError(f"the job runs again: {text}")

    def confirmed(self, leader: str, node: str, *, last: bool) -> None:
        """A leader has heard that a node knows the table that is being prepared."""
        waiting = self.on_confirmed
        waiting[:] = [each for each in waiting if not each(leader or COORDINATOR, node, last=last)]

    def exited(self, agent: Agent) -> None:
        """An agent has ended by itself."""
        self.checker.gone(agent.seat)

    # --- chance ---------------------------------------------------------------------------------

    def between(self, low: int, high: int) -> int:
        """Any whole number of a range."""
        return low + int(self._random.random() * (high - low))

    def chance(self, share: float) -> bool:
        """True in that share of all cases."""
        return self._random.random() < share

    def _incarnation(self) -> str:
        self._incarnations += 1
        return f"i{self._incarnations}-{self._random.getrandbits(32):08x}"


class Agent(Program):
    """One incarnation of the launcher of a node: the shells and cores that coordinate, and `Node`.

    Attributes:
        seat: node and incarnation.
        outcome: how the job ended for it, "" = it has not.
        ranks: of the last round.
        orders: its part in the coordination.
    """

    def __init__(self, cluster: Cluster, name: str, incarnation: str) -> None:
        super().__init__(name, cluster.simulation.listens)
        self.name = name
        self.seat = (name, incarnation)
        self.outcome = ""
        self.ranks: Ranks | None = None
        self.node = Node()
        self._cluster = cluster
        self._slots = cluster.setup.slots
        self._victim = False
        self._verdict = ""
        self._timers = Timers()
        self._exiting = False
        config = cluster.setup.config(name)
        about = c.FollowerConfig(name, incarnation, slots=self._slots, endpoints=())
        self._unborn = Follower(about)
        self.orders = SharedOrders(
            config,
            _Surroundings(cluster, self),
            Turns(),
            self._obey,
            lambda: 1234,
            self._say,
            cast("InProcess", _Alone()),
        )

    @property
    def follower(self) -> Follower:
        """Its follower; before it has begun, one that knows nothing."""
        return self.orders.follower or self._unborn

    @property
    def address(self) -> str:
        """Where the others reach it."""
        return self.follower.config.address or address_of(self.name)

    @property
    def leads(self) -> bool:
        """Whether the leader runs here."""
        return self.orders.leads

    @property
    def follows(self) -> int:
        """Epoch of the leader it follows now, 0 = none."""
        follower = self.follower
        return follower.knows.epoch if follower.state is FollowerState.FOLLOWING else 0

    @property
    def knows_round(self) -> int:
        """The last round it knows to have begun, whether or not it had a part in it; -1 = none."""
        return self.follower.knows.ledger.round

    # --- events ---------------------------------------------------------------------------------

    def started(self) -> None:
        """See `Program`."""
        self.loop.create_task(self.orders.join())

    def told(self, what: Any) -> None:
        """See `Program`."""
        match what:
            case RankEnded(round=number, local_rank=rank, code=code, victim=victim):
                if number == self.node.round:
                    self._victim = victim
                    self._run_node(n.RankExited(rank, code))
            case NodeEvent(round=number, event=happened):
                self._in_round(number, happened)
            case _:
                self.orders.post(what)

    def _in_round(self, number: int, event: n.Event) -> None:
        if number == self.node.round:
            self._run_node(event)

    # --- orders ---------------------------------------------------------------------------------

    def _obey(self, command: m.Command) -> None:
        """What `agent.Agent._obey` does in a real launcher."""
        match command:
            case m.Start(round=number):
                self._cluster.checker.begin(self.seat, self.follower.knows.ledger)
                self._run_node(n.StartRound(number, self._slots))
            case m.Stop(round=number, grace_s=grace_s, signal=signal, agree=agree):
                self._run_node(n.StopRound(number, grace_s, signal, agree=bool(agree)))
                if agree and self.ranks is not None and self.ranks.round == number:
                    said = self.ranks.wait(self.loop.now)
                    self.orders.post(m.RanksAsked(self.name, number, *said))
            case m.StopAfter(round=number, iteration=iteration):
                if self.ranks is not None and self.ranks.round == number and iteration >= 0:
                    asked = self.ranks.stop_after(iteration)
                    about = (self.follower.knows.epoch, number, iteration, asked)
                    self._cluster.checker.stops_after(self.seat, *about)
                self._run_node(n.Agreed(number, ask=iteration >= 0))
            case m.Gather(round=number):
                self._run_node(n.Gather(number))
            case m.GoOn(round=number):
                self._run_node(n.GoOn(number))
            case m.End():
                self._end(command)
            case (
                m.Decided(reason=text)
                | m.Blamed(line=text)
                | m.Advised(reason=text)
                | m.Say(text=text)
            ):
                if isinstance(command, m.Blamed):
                    epoch = self.follower.knows.epoch
                    self._cluster.checker.blamed(self.seat, epoch, command.round, text)
                self._say(f"{type(command).__name__.lower()}: {text}")

    def _say(self, text: str) -> None:
        self._cluster.note(self.name, text)

    # --- node -----------------------------------------------------------------------------------

    def _run_node(self, event: n.Event) -> None:
        if isinstance(event, n.StopRound) and self.ranks is not None:
            self._cluster.checker.stopping(self.seat, event.round)
        for command in self.node.handle(event):
            self._obey_node(command)
        self._exit_if_over()

    def _obey_node(self, command: n.Command) -> None:
        number, ranks = self.node.round, self.ranks
        match command:
            case n.Spawn():
                self._victim, self._verdict = False, ""
                self.ranks = Ranks(self._cluster, self, number, self._slots)
                self.ranks.spawn()
            case n.SetTimer(name=name, delay_s=delay_s):
                self._timers.set(name, delay_s, partial(self._run_node, n.TimerFired(name, number)))
            case n.SignalRanks(local_ranks=local, signal=signal, agree=agree) if ranks is not None:
                ranks.signal(tuple(r for r in local if not agree or r in ranks.deaf), signal)
            case n.SignalTree(signal=signal) if ranks is not None:
                ranks.signal_all(signal)
            case n.GatherEvidence():
                late = self._cluster.chance(_LATE_EVIDENCE)
                took_ns = self._cluster.between(*(_LATE_NS if late else _EVIDENCE_NS))
                gathered = partial(self._run_node, n.EvidenceGathered(number))
                self._timers.set("evidence", took_ns / _NS, gathered)
            case n.JudgeHang():
                self._run_node(n.HangJudged(number, (0,), "rank hangs"))
            case n.JudgeCrash(final=final):
                self._judge(final=final)
            case _:
                self._report_of_node(command)

    def _report_of_node(self, command: n.Command) -> None:
        number, ranks, report = self.node.round, self.ranks, self.orders.post
        match command:
            case n.ReportSuspected(detail=detail):
                report(m.HangSuspected(self.name, number, detail))
            case n.ReportEvidence(gathered=gathered):
                seen = b"hangs" if ranks is not None and ranks.hung else b"waits"
                report(m.NodeEvidence(self.name, number, seen if gathered else b""))
            case n.ReportFailed(kind=kind, detail=detail):
                about = (self.name, number, f"node {self.name}: {detail}")
                report(m.NodeFailed(*about, victim=self._victim, hang=kind == "hang"))
            case n.ReportFinished():
                report(m.NodeFinished(self.name, number))
            case n.ReportStopped(all_ok=all_ok):
                stopped = m.NodeStopped(
                    self.name,
                    number,
                    all_ok=all_ok and (ranks is None or ranks.after is None),
                    iterations=Iterations(last=self.loop.now // _NS),
                    verdict=self._verdict,
                    victim=self._victim,
                )
                report(stopped)

    def _judge(self, *, final: bool) -> None:
        if self._victim and not final:
            self._run_node(n.CrashUnclear())
        else:
            self._verdict = f"a rank of node {self.name} failed"

    # --- the end --------------------------------------------------------------------------------

    def _end(self, end: m.End) -> None:
        if self.outcome:
            return  # the first one counts
        by_itself = end.alone and end.outcome is not m.Outcome.PREEMPTED
        self.outcome = "gave up" if by_itself else end.outcome.value
        self._cluster.ended(self, end.reason)
        if self.node.state is not State.IDLE:
            self._run_node(n.StopRound(self.node.round, 2.0, 15))
        self._exit_if_over()

    def _exit_if_over(self) -> None:
        if self.outcome and not self._exiting and self.node.state is State.IDLE:
            self._exiting = True  # no processes are left
            self.loop.create_task(self._exit())

    async def _exit(self) -> None:
        self._timers.cancel()
        await self.orders.close()
        self._cluster.exited(self)
        self.exit()


class _Silent:
    """Has a port, and says nothing."""

    def __init__(self, address: str) -> None:
        self._address = address

    def handle(self, event: s.Event, _now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
        return [s.Listen(self._address)] if isinstance(event, s.Started) else []


class _Alone:
    """Nobody restarts functions inside of processes."""

    def beside_leader(self) -> Any:
        """Nobody speaks aside."""
        raise AssertionError

    def linked(self, connection: Connection | None) -> None:
        """Nobody speaks aside."""

    def received(self, aside: p.Aside) -> None:
        """Nobody speaks aside."""


class _Disk:
    """The file in which a process keeps the ledger; see `LedgerFile`."""

    def __init__(self, cluster: Cluster, machine: str, process: Program) -> None:
        self._cluster, self._machine, self._process = cluster, machine, process
        self._next: p.Ledger | None = None
        self._written: Callable[[int], object] = int

    def read(self) -> p.Ledger | None:
        """What has been written last."""
        return self._cluster.disks.get(self._machine)

    def keep(self, ledger: p.Ledger, written: Callable[[int], object]) -> None:
        """Have it written a moment later, if this process lives then."""
        if self._next is None:
            delay_s = self._cluster.between(1 * _MS, 20 * _MS) / _NS
            asyncio.get_running_loop().call_later(delay_s, self._write)
        self._next, self._written = ledger, written

    def close(self, *, remove: bool = False) -> None:
        """Write what is left, or remove the file."""
        if remove:
            self._cluster.disks.pop(self._machine, None)
        elif self._next is not None:
            self._cluster.disks[self._machine] = self._next
        self._next = None

    def _write(self) -> None:
        ledger = self._next
        if ledger is None or not self._cluster.simulation.runs(self._machine, self._process):
            return
        self.close()
        self._written(ledger.version)


class _Surroundings(Surroundings):
    """What a launcher has around it here."""

    def __init__(self, cluster: Cluster, agent: Agent) -> None:
        self.incarnation = agent.seat[1]
        self._cluster, self._agent = cluster, agent

    async def network(self, nodes: Nodes) -> Network:
        del nodes
        return self._agent

    def ledger(self, endpoint: str, say: Callable[[str], None]) -> LedgerFile:
        del endpoint, say
        return cast("LedgerFile", _Disk(self._cluster, self._agent.name, self._agent))

    def register(self, nodes: Nodes, address: str) -> Register:
        store, grpc = parse_store(nodes.store), Grpc(self._agent)
        return Client(store, Access(), RUN_ID, nodes.lease_s, address, self.incarnation, grpc)

    def last_end(self) -> str:
        return ""

    def policy(self, nodes: Nodes) -> PolicyConfig:
        del nodes
        return self._cluster.setup.policy

    def leader(
        self,
        config: c.LeaderConfig,
        ledger: p.Ledger,
        epoch: int,
        lost: str,
        silent: tuple[str, ...],
        stops_s: float,
        others_stop_s: float | None,
    ) -> Leader:
        self._cluster.checker.leads(self._agent.seat, epoch, takeover=bool(lost))
        about = (config, ledger, epoch, lost, silent, stops_s, others_stop_s)
        return _Watched(self._cluster, self._agent.name, *about)


class _Watched(Leader):
    """A leader that tells the checker what it does."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        config: c.LeaderConfig,
        ledger: p.Ledger,
        *about: Any,
    ) -> None:
        super().__init__(config, ledger, *about)
        known = cluster.disks.get(name)
        # What etcd had of an earlier start has left its epoch.
        began = ledger.epoch > 0 if config.store else known is not None and known.round >= 0
        if began and not ledger.run_id:
            cluster.checker.began_anew.add(name)
        self._cluster, self._name = cluster, name
        self._nodes: dict[int, str] = {}  # who is at the other end of a connection
        self._known: dict[int, set[str]] = {}  # who has confirmed which version of the ledger

    def handle(self, event: c.LeaderEvent, now: int) -> list[c.LeaderCommand]:
        """See `Leader`."""
        checker = self._cluster.checker
        used, decided = self.policy.restarts_used, (self.recent, self.recent.seen)
        commands = super().handle(event, now)
        if isinstance(event, c.Received):
            self._heard(event.link, event.message, used)
        for command in commands:
            if isinstance(command, c.Persist):
                checker.leads((self._name, self.config.incarnation), self.epoch, takeover=False)
                checker.budget(command.ledger)
            elif isinstance(command, c.Done) and self.state is LeaderState.ENDED:
                checker.over_ns = checker.over_ns or now
        checker.examines(self._name, self.policy.last.examination)
        if (self.recent, self.recent.seen) != decided:  # the policy has taken an event
            checker.restarts(self.policy)
            checker.decides(self.epoch, self.policy)
        return commands

    def _heard(self, link: int, message: Any, used: int) -> None:
        if isinstance(message, p.Hello):
            self._nodes[link] = message.node
        elif isinstance(message, p.Report):
            self._cluster.checker.reported(message.event, used, self.policy.restarts_used)
        elif isinstance(message, p.Prepared):
            node = self._nodes.get(link, "")
            known = self._known.setdefault(message.version, set())
            known.add(node)
            last = all(seat.node in known for seat in self.ledger.pending or self.ledger.table)
            self._cluster.confirmed(self._name, node, last=last)


class Coordinator(Program):
    """A coordinator on a host of its own: what `coordinator_alone` does, with the same shells."""

    def __init__(self, cluster: Cluster, incarnation: str) -> None:
        super().__init__(COORDINATOR, cluster.simulation.listens)
        self._cluster, self._incarnation = cluster, incarnation

    def started(self) -> None:
        """See `Program`."""
        self.loop.create_task(self._serve())

    async def _serve(self) -> None:
        setup, participant = self._cluster.setup, Participant()
        kept = cast("LedgerFile", _Disk(self._cluster, COORDINATOR, self))
        over = asyncio.Event()
        known = await left_behind(kept, RUN_ID, self, lambda _: None)
        epoch = register.next_epoch(known.epoch, self._incarnation)
        config = c.LeaderConfig(
            run_id=RUN_ID,
            policy=setup.policy,
            incarnation=self._incarnation,
            takeover=False,
            lease_s=LEASE_S,
            away_timeout_s=AWAY_TIMEOUT_S,
        )
        leader = _Watched(self._cluster, COORDINATOR, config, known, epoch)
        leading = Leading(leader, self, keep=kept.keep, done=lambda _: over.set())
        await participant.listen(self, PORT, nodes=1, say=lambda _: None)
        participant.lead(leading)
        await over.wait()
        await participant.close("the coordinator ends")
        kept.close(remove=leader.policy.ended)
        self.exit()


@dataclass(frozen=True, slots=True)
class RankEnded:
    """What the kernel tells an agent about a rank. ``victim``: it ended since a peer is gone."""

    round: int
    local_rank: int
    code: int
    victim: bool


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something else that happened on the node, for its state machine; ``round`` says when."""

    round: int
    event: n.Event


@dataclass(slots=True, eq=False)
class Ranks:
    """The ranks of one round on one node. For a rank to end, the agent need not run."""

    cluster: Cluster
    agent: Agent
    round: int
    slots: int
    alive: set[int] = field(default_factory=set)
    deaf: set[int] = field(default_factory=set)
    hung: set[int] = field(default_factory=set)
    asked: int | None = None  # the iteration they have asked about last; they wait since then
    after: int | None = None  # the iteration after which they stop
    over: bool = False  # none of them will be started any more

    def spawn(self) -> None:
        """Start all of them; that takes a moment."""
        self.cluster.after(self._between(20, 300), self._spawned, None)

    def _spawned(self, _: None) -> None:
        if self.over:
            return
        self.alive = set(range(self.slots))
        self.deaf = {rank for rank in self.alive if self.cluster.chance(_DEAF)}
        self.cluster.checker.up(self.agent.seat, self.round)
        self._tell(n.WorkersSpawned())
        self.cluster.ranks_are_up(self)

    def signal(self, local_ranks: tuple[int, ...], number: int) -> None:
        """Send a signal to some."""
        for rank in local_ranks:
            if number == _SIGKILL:
                self.end_later(rank, -number, self._between(1, 10))
            elif rank not in self.deaf:
                self.end_later(rank, -number, self._between(1, 500))

    def signal_all(self, number: int) -> None:
        """Send a signal to whatever there is; say when nothing is left."""
        self.signal(tuple(sorted(self.alive)), number)
        if number == _SIGKILL or not self.alive:
            self.cluster.after(self._between(11, 20), self._empty, None)

    def wait(self, now: int) -> tuple[int, bool, bool]:
        """Go on no more; return what `messages.RanksAsked` says."""
        if self.after is not None:
            return self.after, True, True
        if not self.alive - self.deaf:
            self.asked = -1  # who begins to ask now waits at once
            return -1, False, False
        if self.asked is None:
            self.asked = now // _ITERATION_NS - self._between(0, 3) // _MS
        return self.asked, False, True

    def stop_after(self, iteration: int) -> int:
        """Go on until then; return the iteration that had been asked about."""
        if self.after is None:
            for rank in self.alive - self.deaf - self.hung:
                self.end_later(rank, 0, self._between(1, 500))
        self.after = iteration
        return -1 if self.asked is None else self.asked

    def _empty(self, _: None) -> None:
        if not self.alive:
            self._tell(n.TreeEmpty())

    def end_later(self, rank: int, code: int, delay_ns: int, *, victim: bool = False) -> None:
        """Let a rank end after a while."""
        self.cluster.after(delay_ns, self._ended, (rank, code, victim))

    def _ended(self, what: tuple[int, int, bool]) -> None:
        rank, code, victim = what
        if rank not in self.alive:
            return
        self.alive.discard(rank)
        self.cluster.checker.down(self.agent.seat, self.round, rank)
        self.cluster.tell(self.agent, RankEnded(self.round, rank, code, victim))
        if code > 0 and not victim:
            self.cluster.peers_notice(self)

    def hang(self, rank: int) -> None:
        """Let a rank stand still; its limit passes some seconds later."""
        self.deaf.add(rank)
        self.hung.add(rank)
        delay_ns = self._between(1000, 5000)
        self.pass_limit(rank, delay_ns)
        self.cluster.peers_wait(self, delay_ns)

    def pass_limit(self, rank: int, delay_ns: int) -> None:
        """Let a rank pass a limit after a while, because it hangs or waits for one that does."""
        self.cluster.after(delay_ns, self._limit_passed, rank)

    def _limit_passed(self, rank: int) -> None:
        if rank in self.alive:
            self._tell(n.LimitPassed(rank, "no heartbeat"))

    def vanish(self) -> None:
        """The agent or the machine is gone, and so are they."""
        self.over = True
        if self.alive:
            self.alive.clear()
            self.cluster.checker.down(self.agent.seat, self.round)

    def _tell(self, event: n.Event) -> None:
        self.cluster.tell(self.agent, NodeEvent(self.round, event))

    def _between(self, low_ms: int, high_ms: int) -> int:
        return self.cluster.between(low_ms * _MS, high_ms * _MS)


def _decoded(value: bytes) -> p.Ledger | None:
    try:
        return msgspec.json.decode(value, type=p.Ledger)
    except msgspec.MsgspecError:
        return None


def why_beyond_help(cluster: Cluster) -> str:
    """Say why a job cannot run again, when all that will heal has healed; "" = it can."""
    checker, setup = cluster.checker, cluster.setup
    ledger = _remembered(cluster)
    usable = {node for node, _ in checker.alive} - checker.asked_for_exclusion
    usable -= checker.told_to_leave
    usable -= {agent.name for agent in cluster.agents.values() if cut_off_for_good(agent, cluster)}
    if len(usable) < setup.nodes:
        return f"{len(usable)} nodes are left of the {setup.nodes} it needs"
    if ledger.restarts_used >= setup.max_restarts:
        return "no restart is left"
    if setup.standalone or setup.etcd:
        return ""
    if not p.has_committee(ledger):
        if checker.disk_lost:
            return "what only the leader knew was on a disk that is lost"
        if why := _why_not_led(cluster, usable):
            return why
    if table := register.lacking(checker.alive, ledger):
        left = sum(register.voter(each) in checker.alive for each in table)
        return f"{left} are left of a committee of {len(table)}, which is no majority"
    return ""


def _remembered(cluster: Cluster) -> p.Ledger:
    """The newest ledger that is left: what only a machine knew that is gone, nobody knows."""
    if cluster.setup.standalone or cluster.setup.etcd:
        return cluster.checker.ledger
    alive = [each for each in cluster.agents.values() if each.seat in cluster.checker.alive]
    known = [each.follower.knows.ledger for each in alive]
    disks = [cluster.disks[each.name] for each in alive if each.name in cluster.disks]
    known += [ledger for ledger in disks if not p.has_committee(ledger)]  # nobody elects by a file
    return reduce(lambda one, other: other if p.newer(other, one) else one, known, p.NO_LEDGER)


def cut_off_for_good(agent: Agent, cluster: Cluster) -> bool:
    """Whether an agent has no leader and can never find one: no agent that it can ask knows one.

    It asks the members it knows of, they those they know of, and so on. It was cut off too long, or
    was started again on a disk on which nothing is written about the members.
    """
    alive = [each for each in cluster.agents.values() if each.seat in cluster.checker.alive]
    found = {each.address for each in alive if each.follows}
    if agent.follows or not found or cluster.setup.standalone or cluster.setup.etcd:
        return False
    count = 0
    while count < len(found):  # whoever knows one that has found the leader finds it as well
        count = len(found)
        found |= {each.address for each in alive if _known(each, cluster) & found}
    return agent.address not in found


def _cannot_hear_the_end(agent: Agent, cluster: Cluster) -> bool:
    """Whether an agent follows no leader as the job ends, and knows of none.

    Only a leader stays to tell those who come later: followers end, and name it to nobody any more.
    """
    agents, alive = cluster.agents.values(), cluster.checker.alive
    leaders = {each.address for each in agents if each.leads and each.seat in alive}
    if agent.follows or not leaders:
        return False
    return not _known(agent, cluster) & leaders


def _known(agent: Agent, cluster: Cluster) -> set[str]:
    """Where an agent looks for the leader."""
    follower, ledger = agent.follower, agent.follower.knows.ledger
    ends = {*follower.config.endpoints, cluster.setup.endpoint, follower.search.last}
    seats: list[p.Seat | register.Member]
    seats = [*ledger.table, *ledger.pending, *ledger.committee]
    return ends | {seat.address for seat in seats}


def _why_not_led(cluster: Cluster, usable: set[str]) -> str:
    """Why nobody leads where nobody can take over: the first node led, or one that it named.

    A node that was named and is cut off does not know it; the first node would if it started again.
    """
    checker, first = cluster.checker, cluster.setup.names[0]
    leader, by = checker.ledger.leader or first, checker.led_by
    named = by is not None and by[0] != leader
    leads = leader in usable if leader == first and not named else by in checker.alive
    return "" if leads else f"nobody can take over from {leader}, which is lost"
