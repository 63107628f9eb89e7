"""A job in the simulator: machines, agents and their ranks, and what can be done to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from simulator.coordination.agent import Agent
from simulator.coordination.beyond_help import cut_off_for_good, why_beyond_help
from simulator.coordination.invariants import Checker
from simulator.coordination.server import Coordinator
from simulator.coordination.setup import (
    AWAY_TIMEOUT_S,
    COORDINATOR,
    GIVE_UP_S,
    LEASE_S,
    TERM_TIMEOUT_S,
    Setup,
    address_of,
)
from simulator.run import InvariantError, World
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core.follower_messages import FollowerConfig
from undaunted.coordinator.core.leader import Leader
from undaunted.coordinator.core.leader_messages import LeaderConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.coordination.ranks import Ranks
    from undaunted.coordinator.core.follower_messages import Lead, Prepare

_MS = 1_000_000
_NS = 1_000_000_000
_RUN_ID = "simulated"
# How many peers of a rank that ended notice by themselves, and end as well.
_PEERS = 2


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
        config = FollowerConfig(
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
            self.after(_NS, self.checker.resumed, seat)

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

    def successor(self, seat: election.Voter, lead: Lead) -> Leader:
        """Make the leader that an agent has become."""
        return self._leader(*seat, lead.ledger, lead.epoch, lead.lost, lead.silent)

    def _leader(
        self,
        node: str,
        incarnation: str,
        ledger: p.Ledger | None,
        epoch: int,
        lost: str = "",
        silent: tuple[str, ...] = (),
    ) -> Leader:
        """Make a leader that goes on from a ledger."""
        config = LeaderConfig(
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
        return Leader(config, ledger or p.Ledger(run_id=""), epoch, lost, silent)

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

    def reserve_port(self, agent: Agent, table: Prepare) -> None:
        """Answer a prepared table after a moment, but not before the one before it."""
        at_ns = self.simulation.now + self.between(1 * _MS, 20 * _MS)
        agent.busy_until = max(agent.busy_until, at_ns)
        self.simulation.at(agent.busy_until, self._reserved, (agent, table))

    def _reserved(self, what: tuple[Agent, Prepare]) -> None:
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
        running = [
            agent.ranks
            for agent in self.agents.values()
            if agent.ranks is not None
            and agent.ranks is not ranks
            and agent.ranks.round == ranks.round
            and agent.ranks.alive
            and self.simulation.reaches(ranks.agent.name, agent.name)
        ]
        for other in self._random.sample(running, min(_PEERS, len(running))):
            other.end_later(0, 1, self.between(50 * _MS, 2 * _NS), victim=True)

    def ended(self, agent: Agent, reason: str) -> None:
        """The job is over for an agent."""
        self.note(agent.name, f"ends as {agent.outcome}: {reason}")
        by = agent.follower.leader.partition(":")[0]
        if self.checker.ended(agent.seat, agent.outcome, reason, by):
            epoch, others = agent.follower.knows.epoch, self.agents.values()
            self.checker.followed = {each.seat for each in others if each.follows == epoch}
            lost = {each.name for each in others if cut_off_for_good(each, self)}
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
