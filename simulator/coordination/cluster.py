"""A job in the simulator: machines, agents with their ranks and leaders, what can be done to them.

What the shell does in a real process, sockets and timers, is done here for the same cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

from simulator.coordination.invariants import Checker
from simulator.coordination.setup import (
    ASK_TIMEOUT_NS,
    AWAY_TIMEOUT_S,
    COORDINATOR,
    GIVE_UP_S,
    LEASE_S,
    READY,
    TERM_TIMEOUT_S,
    Setup,
    address_of,
)
from simulator.run import InvariantError, World
from simulator.virtual import messages as s
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core import follower_messages as f
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.follower import ASKS_AFTER_PAUSE_S, Follower, FollowerState
from undaunted.coordinator.core.leader import ELECTED_S, Leader, LeaderState
from undaunted.coordinator.core.progress import Iterations
from undaunted.fault_tolerance.agent import node as n
from undaunted.fault_tolerance.agent.node import Node, State

if TYPE_CHECKING:
    from collections.abc import Callable

_MS = 1_000_000
_NS = 1_000_000_000
_RUN_ID = "simulated"
# How many peers of a rank that ended notice by themselves, and end as well.
_PEERS = 2
_HANDSHAKE_NS = 5 * _NS
# A launcher that waits for the members of an earlier start looks again after half a lease.
_LOOKS_AGAIN_NS = round(LEASE_S / 2 * _NS)
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
        self._disks: dict[str, p.Ledger] = {}  # by machine: the ledger that was written last
        self._incarnations = 0
        self._random = self.simulation.random
        if setup.standalone:
            self.simulation.boot(COORDINATOR)
            self.start_coordinator()
        for name in setup.names:
            self.simulation.boot(name)
            self.simulation.at(self.between(0, 2 * _NS), self.launch, name)

    @property
    def machines(self) -> set[str]:
        """Every machine there has been."""
        return {*self.agents, *self.setup.names, *([COORDINATOR] if self.setup.standalone else [])}

    # --- machines -------------------------------------------------------------------------------

    def launch(self, name: str) -> None:
        """Start a launcher, unless one runs already or the machine has no power."""
        if self.simulation.is_alive(name) or not self.simulation.has_power(name):
            return
        setup = self.setup
        incarnation = self._incarnation()
        config = f.FollowerConfig(
            node=name,
            incarnation=incarnation,
            slots=setup.slots,
            endpoints=self._endpoints(name),
            address=address_of(name),
            infra_rank=int(name[1:]) if setup.ordered else None,
            lease_s=LEASE_S,
            away_timeout_s=AWAY_TIMEOUT_S,
            term_timeout_s=TERM_TIMEOUT_S,
            give_up_s=GIVE_UP_S,
        )
        leader = None
        ledger = self._disks.get(name)
        led = ledger is not None and ledger.round >= 0 and election.led_by_others(ledger, name)
        if address_of(name) == setup.endpoint and not led:
            leader = self._first_leader(name, incarnation)
        agent = self.agents[name] = Agent(self, config, leader)
        self.simulation.start(name, agent, name)
        self.checker.launched(agent.seat)
        if ledger is not None and led and address_of(name) == setup.endpoint:
            self.after(_LOOKS_AGAIN_NS, self._look_again, (agent, ledger, 0))

    def _look_again(self, what: tuple[Agent, p.Ledger, int]) -> None:
        """The launcher at the endpoint asks the members that it knows whether they go on."""
        agent, ledger, since_ns = what
        alive = self.checker.alive
        if agent.seat not in alive or agent.follower.state is not FollowerState.SEEKING:
            return
        others = [self.agents[seat.node] for seat in ledger.table if election.voter(seat) in alive]
        answers = {
            other.seat: other.look()
            for other in others
            if self.simulation.reaches(agent.name, other.name)
            and self.simulation.reaches(other.name, agent.name)
        }
        now = self.simulation.now
        since_ns = 0 if election.goes_on(ledger, answers) else since_ns or now
        if not since_ns or now - since_ns < round((LEASE_S + ELECTED_S) * _NS):
            self.after(_LOOKS_AGAIN_NS, self._look_again, (agent, ledger, since_ns))
            return
        self.checker.began_anew.add(agent.name)
        self.note(agent.name, f"the job begins anew: {len(answers)} are left")
        epoch = election.next_epoch(ledger.epoch, agent.seat[1])
        self.tell(agent, self._leader(*agent.seat, p.Ledger(run_id="", epoch=ledger.epoch), epoch))

    def _endpoints(self, name: str) -> tuple[str, ...]:
        """Where a new launcher looks for a leader: the command line, then the ledger on disk."""
        ledger = self._disks.get(name)
        table = ledger.table if ledger is not None else ()
        return tuple(dict.fromkeys([self.setup.endpoint, *(seat.address for seat in table)]))

    def start_coordinator(self) -> None:
        """Start the coordinator that has a host of its own, or start it again."""
        if self.simulation.is_alive(COORDINATOR) or self.checker.job_over:
            return
        leader = self._first_leader("", self._incarnation())
        coordinator = Coordinator(self, COORDINATOR, self.setup.endpoint, leader)
        self.simulation.start(COORDINATOR, coordinator, COORDINATOR)

    def kill(self, name: str) -> None:
        """Kill a launcher; its ranks die with it, its connections are closed."""
        self.simulation.kill(name)
        self._gone(name)

    def power_off(self, name: str, *, disk_lost: bool = False) -> None:
        """Take a machine's power; nobody is told. It may have another, empty disk afterwards."""
        self.simulation.power_off(name)
        if disk_lost:
            self._disks.pop(name, None)
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

    def pause(self, name: str) -> election.Voter | None:
        """Stop a machine: launcher and ranks stand still, and go on as if nothing had been.

        Return which agent that concerns, None = there is none.
        """
        self.simulation.pause(name)
        agent = self.agents.get(name)
        if agent is None:
            return None
        self.checker.paused(agent.seat)
        return agent.seat

    def resume(self, name: str, seat: election.Voter | None) -> None:
        """Let it go on; ``seat``: the agent that was there when it was stopped."""
        self.simulation.resume(name)
        if seat is not None:
            # By then it has asked its leader whether the job has gone on.
            self.after(round(ASKS_AFTER_PAUSE_S * _NS) + _NS // 2, self.checker.resumed, seat)

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

    def successor(self, seat: election.Voter, lead: f.Lead) -> Leader:
        """Make the leader that an agent has become."""
        about = (*seat, lead.ledger, lead.epoch, lead.lost, lead.silent)
        return self._leader(*about, reset=lead.reset)

    def _leader(
        self,
        node: str,
        incarnation: str,
        ledger: p.Ledger | None,
        epoch: int,
        lost: str = "",
        silent: tuple[str, ...] = (),
        *,
        reset: bool = False,
    ) -> Leader:
        """Make a leader that goes on from a ledger."""
        config = c.LeaderConfig(
            run_id=_RUN_ID,
            policy=self.setup.policy,
            node=node,
            incarnation=incarnation,
            takeover=not self.setup.standalone,
            address=address_of(node) if node else "",
            endpoints=tuple({self.setup.endpoint} - {address_of(node)}) if node else (),
            lease_s=LEASE_S,
            away_timeout_s=AWAY_TIMEOUT_S,
        )
        return Leader(config, ledger or p.Ledger(run_id=""), epoch, lost, silent, reset=reset)

    def _first_leader(self, node: str, incarnation: str) -> Leader:
        ledger = self._disks.get(node or COORDINATOR)
        epoch = election.next_epoch(ledger.epoch if ledger is not None else 0, incarnation)
        return self._leader(node, incarnation, ledger, epoch)

    def persist(self, leader: election.Voter, epoch: int, ledger: p.Ledger) -> None:
        """Write a ledger; it is there a moment later."""
        self.checker.leads(leader, epoch, takeover=False)
        self.checker.budget(ledger)
        written = (leader[0] or COORDINATOR, ledger)
        self.after(self.between(1 * _MS, 20 * _MS), self._written, written)

    def _written(self, what: tuple[str, p.Ledger]) -> None:
        machine, ledger = what
        known = self._disks.get(machine)
        if self.simulation.has_power(machine) and (known is None or p.newer(ledger, known)):
            self._disks[machine] = ledger

    def reserve_port(self, agent: Agent, table: f.Prepare) -> None:
        """Answer a prepared table after a moment, but not before the one before it."""
        at_ns = self.simulation.now + self.between(1 * _MS, 20 * _MS)
        agent.busy_until = max(agent.busy_until, at_ns)
        self.simulation.at(agent.busy_until, self._reserved, (agent, table))

    def _reserved(self, what: tuple[Agent, f.Prepare]) -> None:
        self.tell(*what)

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
        if self.checker.ended(agent.seat, agent.outcome, reason, by, unbegun=unbegun):
            epoch, others = agent.follower.knows.epoch, self.agents.values()
            self.checker.followed = {each.seat for each in others if each.follows == epoch}
            lost = {each.name for each in others if _cannot_hear_the_end(each, self)}
            self.checker.cut_off_for_good |= lost
        if agent.outcome == "gave up" and "the job has ended" not in reason:
            well = self.checker.untouched_for(agent.name, GIVE_UP_S)
            if well and not self.checker.job_over and not why_beyond_help(self):
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


class Agent:
    """One incarnation of the launcher of a node: the cores of follower, leader and node.

    Attributes:
        seat: node and incarnation.
        outcome: how the job ended for it, "" = it has not.
        ranks: of the last round.
        busy_until: when the last table it was given will have been taken in.
    """

    def __init__(self, cluster: Cluster, config: f.FollowerConfig, leader: Leader | None) -> None:
        self.name = config.node
        self.seat = (config.node, config.incarnation)
        self.outcome = ""
        self.ranks: Ranks | None = None
        self.busy_until = 0
        self.follower = Follower(config)
        self.node = Node()
        self._cluster = cluster
        self._slots = config.slots
        self._server: Server | None = None
        self._waits: Server | None = None  # the launcher, for the leader here
        self._first_leader = leader
        self._dials: dict[int, int] = {}  # connection to link
        self._link: dict[int, int] = {}  # link to connection
        self._dialing = 0
        self._serves: set[int] = set()  # connections of followers
        self._victim = False
        self._verdict = ""
        self._timer_rounds: dict[str, int] = {}
        self._take: dict[type, Callable[[Any, int, list[s.Command]], None]] = {
            s.Started: self._started,
            s.Received: self._received,
            s.TimerFired: self._timer,
            s.Told: self._told,
            s.Accepted: self._accepted,
            s.Asked: self._asked,
            s.Answered: self._answered,
            s.Connected: self._connected,
            s.ConnectFailed: self._connect_failed,
            s.Closed: self._closed,
        }

    @property
    def leads(self) -> bool:
        """Whether the leader runs here."""
        return self._server is not None

    @property
    def follows(self) -> int:
        """Epoch of the leader it follows now, 0 = none."""
        follower = self.follower
        return follower.knows.epoch if follower.state is FollowerState.FOLLOWING else 0

    @property
    def knows_round(self) -> int:
        """The last round it knows to have begun, whether or not it had a part in it; -1 = none."""
        return self.follower.knows.ledger.round

    def look(self) -> p.MissAnswer:
        """What it answers to a launcher that asks whether it lives."""
        follower = self.follower
        looks = follower.state in (FollowerState.AWAY, FollowerState.SEEKING)
        return p.MissAnswer(
            node=self.name, incarnation=self.seat[1], epoch=follower.knows.epoch, lost=looks
        )

    # --- events ---------------------------------------------------------------------------------

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
        out: list[s.Command] = []
        self._take[type(event)](event, now, out)
        if self._server is not None and self._server.over:
            self._server = None
            self._serves.clear()
        if self.outcome and not any(isinstance(command, s.Exit) for command in out):
            self._exit_if_over(out)
        return out

    def _started(self, _event: s.Started, now: int, out: list[s.Command]) -> None:
        out.append(s.Listen(address_of(self.name)))
        if self._first_leader is not None:
            self._lead(self._first_leader, now, out)
        self._follow(f.Begin(), now, out)

    def _received(self, event: s.Received, now: int, out: list[s.Command]) -> None:
        connection, message = event.connection, event.message
        link = self._dials.get(connection)
        if link is not None:
            if message is READY:
                out.append(s.CancelTimer("handshake"))
                self._follow(f.Opened(link), now, out)
            else:
                self._follow(f.Received(link, message), now, out)
        elif connection in self._serves:
            if self._server is not None:
                out += self._server.received(connection, message, now)
        elif isinstance(message, p.Hello):
            self._greeted(connection, message, now, out)

    def _greeted(self, connection: int, hello: p.Hello, now: int, out: list[s.Command]) -> None:
        if self._server is None:
            reason = f"node {self.name} does not coordinate the job"
            refused = p.Refused(reason=reason, leader=self.follower.leader)
            out += [s.Send(connection, refused), s.Close(connection)]
            return
        self._serves.add(connection)
        out += self._server.received(connection, hello, now)

    def _accepted(self, event: s.Accepted, _now: int, out: list[s.Command]) -> None:
        out.append(s.Send(event.connection, READY))

    def _asked(self, event: s.Asked, now: int, out: list[s.Command]) -> None:
        self._follow(f.Asked(event.question, event.message), now, out)

    def _answered(self, event: s.Answered, now: int, out: list[s.Command]) -> None:
        kind, _, rest = event.label.partition(" ")
        if kind == "follower":
            self._follow(f.Answered(rest, event.message), now, out)
        elif self._server is not None:
            out += self._server.answered(event, now)

    def _connected(self, event: s.Connected, _now: int, out: list[s.Command]) -> None:
        link = int(event.label.removeprefix("dial "))
        if link != self._dialing:  # hung up before it stood
            out.append(s.Close(event.connection))
            return
        self._dials[event.connection] = link
        self._link[link] = event.connection

    def _connect_failed(self, event: s.ConnectFailed, now: int, out: list[s.Command]) -> None:
        link = int(event.label.removeprefix("dial "))
        self._follow(f.Closed(link, event.reason), now, out)

    def _closed(self, event: s.Closed, now: int, out: list[s.Command]) -> None:
        connection = event.connection
        link = self._dials.pop(connection, None)
        if link is not None:
            del self._link[link]
            self._follow(f.Closed(link, event.reason), now, out)
        elif connection in self._serves:
            self._serves.discard(connection)
            if self._server is not None:
                out += self._server.closed(connection, event.reason, now)

    def _timer(self, event: s.TimerFired, now: int, out: list[s.Command]) -> None:
        kind, _, rest = event.name.partition(" ")
        if kind == "follower":
            self._follow(f.TimerFired(rest), now, out)
        elif kind == "leader":
            if self._server is not None:
                out += self._server.timer(event.name, now)
        elif kind == "node":
            self._run_node(n.TimerFired(rest, self._timer_rounds[rest]), now, out)
        elif kind == "handshake":
            connection = self._link.pop(self._dialing, None)
            if connection is not None:
                del self._dials[connection]
                out.append(s.Close(connection))
            self._follow(f.Closed(self._dialing, "no answer within 5 s"), now, out)
        elif kind == "wait":
            self._exit(out)
        elif kind == "evidence":
            self._run_node(n.EvidenceGathered(self._timer_rounds["evidence"]), now, out)

    def _told(self, event: s.Told, now: int, out: list[s.Command]) -> None:
        match event.what:
            case RankEnded(round=number, local_rank=rank, code=code, victim=victim):
                if number == self.node.round:
                    self._victim = victim
                    self._run_node(n.RankExited(rank, code), now, out)
            case NodeEvent(round=number, event=happened):
                if number == self.node.round:
                    self._run_node(happened, now, out)
            case m.Preempted() | m.ExclusionRequested() | m.RestartOrdered() as wish:
                self._report(wish, now, out)
            case m.ExclusionOrdered() | m.LimitsOrdered() | m.StopOrdered() as wish:
                self._report(wish, now, out)
            case Leader() as leader:
                self._lead(leader, now, out)
            case f.Prepare(round=number, version=version):
                table = f.TableKnown(number, version, self.name, 1234)
                self._follow(table, now, out)

    # --- follower -------------------------------------------------------------------------------

    def _follow(self, event: f.Event, now: int, out: list[s.Command]) -> None:
        for command in self.follower.handle(event, now):
            # Most are of these kinds, which a match would find in three times the time.
            if isinstance(command, f.Send):
                if command.link in self._link:
                    out.append(s.Send(self._link[command.link], command.message))
            elif isinstance(command, f.SetTimer):
                out.append(s.SetTimer("follower " + command.name, round(command.delay_s * _NS)))
            elif isinstance(command, f.Ask):
                label = "follower " + command.node
                out.append(s.Ask(label, command.address, command.message, ASK_TIMEOUT_NS))
            elif isinstance(command, f.Answer):
                out.append(s.Answer(command.question, command.message))
            else:
                self._obey_follower(command, now, out)

    def _obey_follower(self, command: f.Command, now: int, out: list[s.Command]) -> None:
        match command:
            case f.Dial(link=link, address=address):
                self._dialing = link
                out.append(s.Connect(f"dial {link}", address, _HANDSHAKE_NS))
                out.append(s.SetTimer("handshake", _HANDSHAKE_NS))
            case f.Hangup(link=link):
                self._hang_up(link, out)
            case f.Say(text=text):
                self._cluster.note(self.name, text)
            case _:
                self._obey_about_the_job(command, now, out)

    def _obey_about_the_job(self, command: f.Command, now: int, out: list[s.Command]) -> None:
        match command:
            case f.Prepare():
                self._cluster.reserve_port(self, command)
            case f.Deliver(command=ordered):
                self._ordered(ordered, now, out)
            case f.StopRanks(round=number, grace_s=grace_s, signal=signal):
                self._run_node(n.StopRound(number, grace_s, signal), now, out)
            case f.Lead():
                leader = self._cluster.successor(self.seat, command)
                self._lead(leader, now, out)
            case f.StandDown():
                self._stand_down(out)
            case f.Leave(reason=reason):
                self._end("preempted", reason, now, out)
            case f.GiveUp(reason=reason):
                self._end("gave up", reason, now, out)

    def _hang_up(self, link: int, out: list[s.Command]) -> None:
        connection = self._link.pop(link, None)
        if link == self._dialing:
            self._dialing = 0
            out.append(s.CancelTimer("handshake"))
        if connection is not None:
            del self._dials[connection]
            out.append(s.Close(connection))

    def _ordered(self, command: m.NodeCommand, now: int, out: list[s.Command]) -> None:
        match command:
            case m.Start(round=number):
                self._cluster.checker.begin(self.seat, self.follower.knows.ledger)
                self._run_node(n.StartRound(number, self._slots), now, out)
            case m.Stop(round=number, grace_s=grace_s, signal=signal, agree=agree):
                stop = n.StopRound(number, grace_s, signal, agree=bool(agree))
                self._run_node(stop, now, out)
                if agree and self.ranks is not None and self.ranks.round == number:
                    said = self.ranks.wait(now)
                    self._report(m.RanksAsked(self.name, number, *said), now, out)
            case m.StopAfter(round=number, iteration=iteration):
                if self.ranks is not None and self.ranks.round == number and iteration >= 0:
                    asked = self.ranks.stop_after(iteration)
                    about = (self.follower.knows.epoch, number, iteration, asked)
                    self._cluster.checker.stops_after(self.seat, *about)
                self._run_node(n.Agreed(number, ask=iteration >= 0), now, out)
            case m.Gather(round=number):
                self._run_node(n.Gather(number), now, out)
            case m.GoOn(round=number):
                self._run_node(n.GoOn(number), now, out)
            case m.End(outcome=outcome, reason=reason):
                self._end(outcome.value, reason, now, out)
            case (
                m.Decided(reason=text)
                | m.Blamed(line=text)
                | m.Advised(reason=text)
                | m.Say(text=text)
            ):
                if isinstance(command, m.Blamed):
                    epoch = self.follower.knows.epoch
                    self._cluster.checker.blamed(self.seat, epoch, command.round, text)
                self._cluster.note(self.name, f"{type(command).__name__.lower()}: {text}")

    # --- leader ---------------------------------------------------------------------------------

    def _lead(self, leader: Leader, now: int, out: list[s.Command]) -> None:
        self._stand_down(out)
        self._server = Server(self._cluster, self.name, leader)
        self._cluster.checker.leads(self.seat, leader.epoch, takeover=bool(leader.lost))
        out += self._server.begin(now)

    def _stand_down(self, out: list[s.Command]) -> None:
        if self._server is not None:
            out += self._server.drop()
            self._server = None
            self._serves.clear()

    # --- node -----------------------------------------------------------------------------------

    def _run_node(self, event: n.Event, now: int, out: list[s.Command]) -> None:
        if isinstance(event, n.StopRound) and self.ranks is not None:
            self._cluster.checker.stopping(self.seat, event.round)
        for command in self.node.handle(event):
            self._obey_node(command, now, out)

    def _obey_node(self, command: n.Command, now: int, out: list[s.Command]) -> None:
        number, ranks = self.node.round, self.ranks
        match command:
            case n.Spawn():
                self._victim, self._verdict = False, ""
                self.ranks = Ranks(self._cluster, self, number, self._slots)
                self.ranks.spawn()
            case n.SetTimer(name=name, delay_s=delay_s):
                self._timer_rounds[name] = number
                out.append(s.SetTimer(f"node {name}", round(delay_s * _NS)))
            case n.SignalRanks(local_ranks=local, signal=signal, agree=agree) if ranks is not None:
                ranks.signal(tuple(r for r in local if not agree or r in ranks.deaf), signal)
            case n.SignalTree(signal=signal) if ranks is not None:
                ranks.signal_all(signal)
            case n.GatherEvidence():
                self._timer_rounds["evidence"] = number
                late = self._cluster.chance(_LATE_EVIDENCE)
                took_ns = self._cluster.between(*(_LATE_NS if late else _EVIDENCE_NS))
                out.append(s.SetTimer("evidence", took_ns))
            case n.JudgeHang():
                self._run_node(n.HangJudged(number, (0,), "rank hangs"), now, out)
            case n.JudgeCrash(final=final):
                self._judge(now, out, final=final)
            case _:
                self._report_of_node(command, now, out)

    def _report_of_node(self, command: n.Command, now: int, out: list[s.Command]) -> None:
        number, ranks = self.node.round, self.ranks
        match command:
            case n.ReportSuspected(detail=detail):
                self._report(m.HangSuspected(self.name, number, detail), now, out)
            case n.ReportEvidence(gathered=gathered):
                seen = b"hangs" if ranks is not None and ranks.hung else b"waits"
                self._report(m.NodeEvidence(self.name, number, seen if gathered else b""), now, out)
            case n.ReportFailed(kind=kind, detail=detail):
                about = (self.name, number, f"node {self.name}: {detail}")
                failed = m.NodeFailed(*about, victim=self._victim, hang=kind == "hang")
                self._report(failed, now, out)
            case n.ReportFinished():
                self._report(m.NodeFinished(self.name, number), now, out)
            case n.ReportStopped(all_ok=all_ok):
                stopped = m.NodeStopped(
                    self.name,
                    number,
                    all_ok=all_ok and (ranks is None or ranks.after is None),
                    iterations=Iterations(last=now // _NS),
                    verdict=self._verdict,
                    victim=self._victim,
                )
                self._report(stopped, now, out)

    def _judge(self, now: int, out: list[s.Command], *, final: bool) -> None:
        if self._victim and not final:
            self._run_node(n.CrashUnclear(), now, out)
        else:
            self._verdict = f"a rank of node {self.name} failed"

    def _report(self, event: m.NodeEvent, now: int, out: list[s.Command]) -> None:
        self._follow(f.Tell(event), now, out)

    # --- the end --------------------------------------------------------------------------------

    def _end(self, outcome: str, reason: str, now: int, out: list[s.Command]) -> None:
        self.outcome = outcome
        self._cluster.ended(self, reason)
        if self.node.state is not State.IDLE:
            self._run_node(n.StopRound(self.node.round, 2.0, 15), now, out)

    def _exit_if_over(self, out: list[s.Command]) -> None:
        if self.follower.state is not FollowerState.ENDED:
            return
        if self.node.state is not State.IDLE:
            return  # as long as processes are left
        server = self._server
        if self._waits is not None and self._waits is server:
            return
        if server is None or not server.is_needed:
            self._exit(out)
        else:
            self._waits = server
            out.append(s.SetTimer("wait", round((server.leader.linger_s + 1) * _NS)))

    def _exit(self, out: list[s.Command]) -> None:
        out.append(s.Exit())
        self._cluster.exited(self)


class Server:
    """Carries out what one `Leader` commands."""

    def __init__(self, cluster: Cluster, name: str, leader: Leader) -> None:
        self.leader = leader
        self.over = False
        self._cluster = cluster
        self._name = name
        self._links: dict[int, str] = {}  # who is at the other end
        self._known: dict[int, set[str]] = {}  # who has confirmed which version of the ledger
        self._prefix = f"leader {leader.epoch} "
        self._rounds: dict[str, int] = {}

    @property
    def is_needed(self) -> bool:
        """Whether it stays: for those who have not heard how the job ended, or who leads next."""
        leader = self.leader
        return not self.over and (leader.state is LeaderState.ENDED or leader.ledger.round >= 0)

    def begin(self, now: int) -> list[s.Command]:
        """The first event of the leader."""
        return self.handle(c.Begin(), now)

    def received(self, link: int, message: Any, now: int) -> list[s.Command]:
        """Somebody who wants to follow, or does, has said something."""
        if isinstance(message, p.Hello):
            self._links[link] = message.node
        used = self.leader.policy.restarts_used
        commands = self.handle(c.Received(link, message), now)
        if isinstance(message, p.Report):
            self._cluster.checker.reported(message.event, used, self.leader.policy.restarts_used)
        if isinstance(message, p.Prepared):
            node, ledger = self._links.get(link, ""), self.leader.ledger
            known = self._known.setdefault(message.version, set())
            known.add(node)
            last = all(seat.node in known for seat in ledger.pending or ledger.table)
            self._cluster.confirmed(self._name, node, last=last)
        return commands

    def closed(self, link: int, reason: str, now: int) -> list[s.Command]:
        """A connection is gone."""
        self._links.pop(link, None)
        return self.handle(c.Closed(link, reason), now)

    def timer(self, name: str, now: int) -> list[s.Command]:
        """A timer ran out, of this leader or of an earlier one."""
        if not name.startswith(self._prefix):
            return []
        short = name.removeprefix(self._prefix)
        return self.handle(c.TimerFired(short, self._rounds.get(short, 0)), now)

    def answered(self, event: s.Answered, now: int) -> list[s.Command]:
        """A question was answered, of this leader or of an earlier one."""
        if not event.label.startswith(self._prefix):
            return []
        node = event.label.removeprefix(self._prefix)
        return self.handle(c.Answered(node, event.message), now)

    def drop(self) -> list[s.Command]:
        """Lead no more: another node does."""
        self.over = True
        links, self._links = sorted(self._links), {}
        return [s.Close(link) for link in links]

    def handle(self, event: c.Event, now: int) -> list[s.Command]:
        """Pass an event to the leader; return what follows."""
        if self.over:
            return []
        out: list[s.Command] = []
        for command in self.leader.handle(event, now):
            self._carry_out(command, out)
        self._cluster.checker.examines(self._name, self.leader.policy.examination)
        self._cluster.checker.restarts(self.leader.policy)
        self._cluster.checker.decides(self.leader.epoch, self.leader.policy)
        return out

    def _carry_out(self, command: c.Command, out: list[s.Command]) -> None:
        match command:
            case c.Send(link=link, message=message):
                out.append(s.Send(link, message))
            case c.SetTimer(name=name, round=number, delay_s=delay_s):
                self._rounds[name] = number
                out.append(s.SetTimer(self._prefix + name, round(delay_s * _NS)))
            case c.Close(link=link):
                self._links.pop(link, None)
                out.append(s.Close(link))
            case c.Ask(node=node, address=address, message=question):
                out.append(s.Ask(self._prefix + node, address, question, ASK_TIMEOUT_NS))
            case c.Persist(ledger=ledger):
                seat = (self._name, self.leader.config.incarnation)
                self._cluster.persist(seat, self.leader.epoch, ledger)
            case c.Done():
                if self.leader.state is LeaderState.ENDED:
                    self._cluster.checker.job_over = True
                out += self.drop()


class Coordinator:
    """A coordinator on a host of its own: a process that serves one leader."""

    def __init__(self, cluster: Cluster, name: str, address: str, leader: Leader) -> None:
        self._address = address
        self._server = Server(cluster, name, leader)

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
        commands = self._handle(event, now)
        return [*commands, s.Exit()] if self._server.over else commands

    def _handle(self, event: s.Event, now: int) -> list[s.Command]:
        server = self._server
        match event:
            case s.Received(connection=connection, message=message):
                return server.received(connection, message, now)
            case s.TimerFired(name=name):
                return server.timer(name, now)
            case s.Accepted(connection=connection):
                return [s.Send(connection, READY)]
            case s.Closed(connection=connection, reason=reason):
                return server.closed(connection, reason, now)
            case s.Answered():
                return server.answered(event, now)
            case s.Started():
                return [s.Listen(self._address), *server.begin(now)]
        return []


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
    if setup.standalone:
        return ""
    if not election.votes_count(ledger):
        if checker.disk_lost:
            return "what only the leader knew was on a disk that is lost"
        if why := _why_not_led(cluster, usable):
            return why
    votes = [each for each in election.electing(ledger) if election.table_votes(*each)]
    pending = [(ledger.pending, "")] if election.votes_count(ledger) else []
    for table, casting_vote in (*votes, *pending):
        voters = [seat for seat in table if _has_vote(seat, ledger, cluster)]
        if table and not election.is_quorum(
            {election.voter(seat) for seat in voters}, table, casting_vote
        ):
            return f"{len(voters)} are left of a table of {len(table)}, which is no quorum"
    return ""


def _remembered(cluster: Cluster) -> p.Ledger:
    """The newest ledger; the newest that an agent knows, if a disk is lost."""
    newest = cluster.checker.ledger
    if not cluster.checker.disk_lost:
        return newest
    alive = [each for each in cluster.agents.values() if each.seat in cluster.checker.alive]
    known = [each.follower.knows.ledger for each in alive]
    return reduce(lambda one, other: other if p.newer(other, one) else one, known, p.NO_LEDGER)


def _has_vote(seat: p.Seat, ledger: p.Ledger, cluster: Cluster) -> bool:
    """Whether a member lives, and knows that it may vote."""
    if election.voter(seat) not in cluster.checker.alive:
        return False
    first_vote = ledger.before and not election.table_votes(ledger.before, ledger.before_vote)
    return not first_vote or cluster.agents[seat.node].knows_round >= ledger.round


def cut_off_for_good(agent: Agent, cluster: Cluster) -> bool:
    """Whether an agent has no leader and can never find one: no agent that it can ask knows one.

    It asks the members it knows of, they those they know of, and so on. It was cut off too long, or
    was started again on a disk on which nothing is written about the members.
    """
    alive = [each for each in cluster.agents.values() if each.seat in cluster.checker.alive]
    found = {address_of(each.name) for each in alive if each.follows}
    if agent.follows or not found or cluster.setup.standalone:
        return False
    count = 0
    while count < len(found):  # whoever knows one that has found the leader finds it as well
        count = len(found)
        found |= {address_of(each.name) for each in alive if _known(each, cluster) & found}
    return address_of(agent.name) not in found


def _cannot_hear_the_end(agent: Agent, cluster: Cluster) -> bool:
    """Whether an agent follows no leader as the job ends, and knows of none.

    Only a leader stays to tell those who come later: followers end, and name it to nobody any more.
    """
    agents, alive = cluster.agents.values(), cluster.checker.alive
    leaders = {address_of(each.name) for each in agents if each.leads and each.seat in alive}
    if agent.follows or not leaders:
        return False
    return not _known(agent, cluster) & leaders


def _known(agent: Agent, cluster: Cluster) -> set[str]:
    """Where an agent looks for the leader."""
    follower, ledger = agent.follower, agent.follower.knows.ledger
    ends = {*follower.config.endpoints, cluster.setup.endpoint, follower.search.last}
    return ends | {seat.address for seat in (*ledger.table, *ledger.pending)}


def _why_not_led(cluster: Cluster, usable: set[str]) -> str:
    """Why nobody leads where nobody can take over: the first node led, or one that it named.

    A node that was named and is cut off does not know it; the first node would if it started again.
    """
    checker, first = cluster.checker, cluster.setup.names[0]
    leader, by = checker.ledger.leader or first, checker.led_by
    named = by is not None and by[0] != leader
    leads = leader in usable if leader == first and not named else by in checker.alive
    return "" if leads else f"nobody can take over from {leader}, which is lost"
