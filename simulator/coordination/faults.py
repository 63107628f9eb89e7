"""Faults of a simulated job: a seeded plan of them, and how each is made."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from simulator.coordination.setup import BY_HAND, COORDINATOR
from simulator.etcd.members import MEMBERS
from undaunted.coordinator.lead.times import AWAY_MARGIN_S
from undaunted.coordinator.policy import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.coordination.cluster import Cluster
    from simulator.coordination.setup import Setup

_MS = 1_000_000
_NS = 1_000_000_000

# What `--faults` knows.
KINDS: dict[str, str] = {
    "crash": "a rank exits with 1",
    "hang": "a rank stands still",
    "kill": "a launcher is killed; mostly it is started again",
    "power": "a machine loses power; mostly it comes back, or another one does",
    "disk": "a machine loses power and its disk, and comes back with an empty one",
    "pause": "a machine stands still for a while",
    "slow": "a launcher takes long over everything for a while",
    "partition": "the network falls into two parts for a while",
    "isolate": "one machine is cut off for a while",
    "one-way": "one machine is heard no more, or hears nothing, for a while",
    "shift": "the network falls into two parts, and a node changes sides as it confirms a round",
    "reset": "the connections between two machines are reset",
    "coordinator": "the leader's process is killed, or the coordinator is started anew",
    "exclude": "a rank asks to go on without its node",
    "leave": "a launcher gets SIGTERM",
    "order": "somebody orders a restart, other limits, to go on without a node, or the end",
}
# What happens besides where etcd decides who leads.
ETCD_KINDS: dict[str, str] = {
    "member": "a member of etcd is killed, loses power, stands still or is cut off for a while",
    "etcd": "all members of etcd stand still, or are cut off from all nodes, for a while",
}
# What is ordered, by the choice of the fault.
ORDERS = ("restart", "restart", "restart", "exclude", "exclude", "exclude", "limits", "stop")
_FIRST_NS = 4 * _NS
_SPACING_S = 1.5
_LOSING = frozenset({"kill", "power", "disk", "coordinator"})
_CUTTING = frozenset({"partition", "isolate", "one-way", "shift"})
_LOST_WINDOW_NS = 30 * _NS


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at_ns: when.
        kind: see `KINDS`.
        nodes: whom it concerns; of a partition, one of the two parts. Empty: whoever leads.
        lasts_ns: for how long, or until the launcher or machine is back; 0 = it never is.
        replaced_by: node that comes instead, "" = the same.
        choice: a number that decides the rest.
    """

    at_ns: int
    kind: str
    nodes: tuple[str, ...] = ()
    lasts_ns: int = 0
    replaced_by: str = ""
    choice: int = 0

    @property
    def until_ns(self) -> int:
        """When everything it did has been undone, as far as it will be."""
        return self.at_ns + self.lasts_ns

    def __str__(self) -> str:
        who = ",".join(self.nodes[:8]) + (",..." if len(self.nodes) > 8 else "")
        text = f"{self.kind} {who or 'the leader'}"
        if self.lasts_ns:
            text += f" for {self.lasts_ns / _NS:.1f} s"
        return text + (f", then {self.replaced_by}" if self.replaced_by else "")


def plan(setup: Setup, seed: int, kinds: Sequence[str], count: int) -> list[Fault]:
    """Make ``count`` faults of these kinds, the same for the same arguments.

    Nodes for which nothing comes back are at most as many as there are spares.
    """
    chance = Random(f"plan {seed}")  # noqa: S311 - to be repeated
    return _Planner(setup, chance).make(kinds, count)


class _Planner:
    def __init__(self, setup: Setup, chance: Random) -> None:
        self._chance = chance
        self._nodes = setup.names
        self._spares = setup.spares
        self._fresh = len(self._nodes)
        self._once: set[str] = set()
        # Voters that are lost in a short time may leave no quorum: few, in most plans.
        self._brutal = chance.random() < 0.1
        self._most_lost = max(1, (setup.nodes - 1) // 3)
        self._lost_at: list[int] = []

    def make(self, kinds: Sequence[str], count: int) -> list[Fault]:
        at_ns, faults = _FIRST_NS, []
        for _ in range(count):
            at_ns += int(self._chance.expovariate(1 / _SPACING_S) * _NS)
            kind = self._chance.choice(kinds)
            if kind in _LOSING and not self._may_lose(at_ns):
                kind = "crash"
            fault = self._one(kind, at_ns)
            if fault is not None:
                faults.append(fault)
        return faults

    def _one(self, kind: str, at_ns: int) -> Fault | None:
        chance = self._chance
        node = (chance.choice(self._nodes),)
        choice = chance.getrandbits(16)
        match kind:
            case "kill":
                return self._with_loss(at_ns, kind, node, self._lasts(0.5, 10))
            case "power":
                return self._with_loss(at_ns, kind, node, self._lasts(2, 15))
            case "disk":  # that of the first node, which may lead, is the one that matters
                first = self._nodes[0] if chance.random() < 0.5 else node[0]
                return self._with_loss(at_ns, kind, (first,), self._lasts(2, 40))
            case "exclude" | "leave":
                if kind in self._once or not self._lose(node[0]):
                    return None
                self._once.add(kind)
                return Fault(at_ns, kind, node)
            case "pause" | "isolate" | "one-way" | "slow":
                lasts_ns = self._lasts(2, 20) if kind == "slow" else self._lasts(0.5, 30)
                return Fault(at_ns, kind, node, lasts_ns, choice=choice)
            case "partition" | "shift":
                size = chance.choice([1, len(self._nodes) // 2, chance.randrange(len(self._nodes))])
                part = tuple(sorted(chance.sample(self._nodes, max(1, size))))
                lasts_ns = self._lasts(0.5, 30) if kind == "partition" else self._lasts(12, 40)
                return Fault(at_ns, kind, part, lasts_ns, choice=choice)
            case "order":
                return self._order(at_ns, node, choice)
            case "reset":
                return Fault(at_ns, kind, (node[0], chance.choice(self._nodes)))
            case "coordinator":
                return Fault(at_ns, kind, (), self._lasts(0.2, 8))
            case "member" | "etcd":
                members = (chance.choice(MEMBERS),) if kind == "member" else MEMBERS
                return Fault(at_ns, kind, members, self._lasts(0.5, 20), choice=choice)
        return Fault(at_ns, kind, node, choice=choice)

    def _order(self, at_ns: int, node: tuple[str, ...], choice: int) -> Fault | None:
        """Who is excluded is started again, and told again that the job goes on without it."""
        if ORDERS[choice % len(ORDERS)] != "exclude":
            return Fault(at_ns, "order", node, choice=choice)
        if not self._lose(node[0]):
            return None
        return Fault(at_ns, "order", node, self._lasts(5, 30), choice=choice)

    def _with_loss(self, at_ns: int, kind: str, node: tuple[str, ...], lasts_ns: int) -> Fault:
        """Mostly the node comes back, or one of another name; it may be lost for good."""
        if self._chance.random() < 0.2 and self._lose(node[0]):
            return Fault(at_ns, kind, node)
        replaced_by = ""
        if kind == "power" and self._chance.random() < 0.3:
            replaced_by = f"n{self._fresh:03}"
            self._fresh += 1
            self._nodes[self._nodes.index(node[0])] = replaced_by
        return Fault(at_ns, kind, node, lasts_ns, replaced_by)

    def _may_lose(self, at_ns: int) -> bool:
        self._lost_at = [each for each in self._lost_at if each > at_ns - _LOST_WINDOW_NS]
        if not self._brutal and len(self._lost_at) >= self._most_lost:
            return False
        self._lost_at.append(at_ns)
        return True

    def _lose(self, node: str) -> bool:
        if self._spares == 0:
            return False
        self._spares -= 1
        self._nodes.remove(node)
        return True

    def _lasts(self, low_s: float, high_s: float) -> int:
        """Short more often than long."""
        return int((low_s + (high_s - low_s) * self._chance.random() ** 3) * _NS)


class Nemesis:
    """Makes the faults of a plan, and undoes them."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault]) -> None:
        self._cluster = cluster
        self._simulation = cluster.simulation
        self._make: dict[str, Callable[[Fault], None]] = {
            "crash": self._crash,
            "hang": self._hang,
            "kill": self._kill,
            "power": self._power,
            "disk": self._power,
            "pause": self._pause,
            "slow": self._slow,
            "partition": self._partition,
            "isolate": self._partition,
            "one-way": self._one_way,
            "shift": self._shift,
            "reset": self._reset,
            "coordinator": self._coordinator,
            "exclude": self._exclude,
            "leave": self._leave,
            "order": self._order,
            "member": self._member,
            "etcd": self._etcd,
        }
        for fault in faults:
            self._simulation.at(fault.at_ns, self._happen, fault)

    def _happen(self, fault: Fault) -> None:
        if not self._cluster.machines.issuperset(fault.nodes):
            return  # the one that was to replace another has not come
        self._cluster.note("fault", str(fault))
        self._tell_checker(fault)
        self._make[fault.kind](fault)

    def _tell_checker(self, fault: Fault) -> None:
        checker = self._cluster.checker
        if fault.kind in _CUTTING:
            checker.cut(fault.nodes, fault.until_ns)
        else:
            for node in fault.nodes:
                checker.touch(node, fault.until_ns)
        # Of both parts: any node may be the one that is alone.
        concerned = fault.nodes
        if fault.kind in {"partition", "shift"} or self._of_leader(fault):
            concerned = tuple(self._cluster.agents)
        for node in concerned:
            checker.keep_from(node, fault.until_ns)

    def _of_leader(self, fault: Fault) -> bool:
        """Whether it cuts the leader off, or stops it where the others cannot outvote it."""
        agents = [self._cluster.agents.get(node) for node in fault.nodes]
        concerns_all = fault.kind in _CUTTING or not self._cluster.setup.votes
        return concerns_all and any(each and each.leads for each in agents)

    def _later(self, fault: Fault, action: Callable[[Fault], None]) -> None:
        if fault.lasts_ns:
            self._cluster.after(fault.lasts_ns, self._undo, (fault, action))

    def _undo(self, what: tuple[Fault, Callable[[Fault], None]]) -> None:
        fault, action = what
        self._cluster.note("fault", f"over: {fault}")
        action(fault)

    # --- ranks ----------------------------------------------------------------------------------

    def _crash(self, fault: Fault) -> None:
        agent = self._cluster.agents.get(fault.nodes[0])
        if agent is not None and agent.ranks is not None:
            agent.ranks.end_later(fault.choice % agent.ranks.slots, 1, 0)

    def _hang(self, fault: Fault) -> None:
        agent = self._cluster.agents.get(fault.nodes[0])
        if agent is not None and agent.ranks is not None:
            agent.ranks.hang(fault.choice % agent.ranks.slots)

    # --- launchers and machines -----------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        self._cluster.kill(fault.nodes[0])
        self._later(fault, self._back)

    def _power(self, fault: Fault) -> None:
        self._cluster.power_off(fault.nodes[0], disk_lost=fault.kind == "disk")
        self._later(fault, self._back)

    def _back(self, fault: Fault) -> None:
        name = fault.replaced_by or fault.nodes[0]
        self._simulation.boot(name)
        self._cluster.launch(name)

    def _pause(self, fault: Fault) -> None:
        seat = self._cluster.pause(fault.nodes[0])
        self._later(fault, lambda _: self._cluster.resume(fault.nodes[0], seat))

    def _slow(self, fault: Fault) -> None:
        name = fault.nodes[0]
        self._simulation.slow(name, (1 + fault.choice % 20) * _MS)
        self._later(fault, lambda _: self._simulation.slow(name, 0))

    def _coordinator(self, fault: Fault) -> None:
        if self._cluster.setup.standalone:
            self._cluster.checker.touch(COORDINATOR, fault.until_ns)
            self._simulation.kill(COORDINATOR)
            self._later(fault, lambda _: self._cluster.start_coordinator())
            return
        leading = [name for name, agent in self._cluster.agents.items() if agent.leads]
        alive = [name for name in leading if self._simulation.is_alive(name)]
        if not alive:
            return
        self._cluster.checker.touch(alive[-1], fault.until_ns)
        self._cluster.kill(alive[-1])
        self._later(fault, lambda _: self._cluster.launch(alive[-1]))

    # --- the network ----------------------------------------------------------------------------

    def _partition(self, fault: Fault) -> None:
        one = frozenset(fault.nodes)
        if fault.kind == "partition":  # members of etcd are on either side
            members = self._cluster.setup.etcd_members
            one |= {each for at, each in enumerate(members) if fault.choice >> at & 1}
        other = frozenset(self._cluster.machines) - one
        cuts = [self._simulation.cut(one, other), self._simulation.cut(other, one)]

        def heal(_: Fault) -> None:
            for cut in cuts:
                self._simulation.heal(cut)

        self._later(fault, heal)

    def _one_way(self, fault: Fault) -> None:
        one = frozenset(fault.nodes)
        other = frozenset(self._cluster.machines) - one
        sources, targets = (one, other) if fault.choice % 2 else (other, one)
        cut = self._simulation.cut(sources, targets)
        self._later(fault, lambda _: self._simulation.heal(cut))

    def _shift(self, fault: Fault) -> None:
        """A partition in which one node comes to the other part when it has confirmed a table.

        The choice says whether the last of the table that confirms it does so or any, and
        whether its connection to the leader is reset as well.
        """
        part, cuts = set(fault.nodes), []
        only_last, reset = fault.choice & 3 != 0, fault.choice & 4 != 0

        def divide() -> None:
            other = self._cluster.machines - part
            cuts.extend([self._simulation.cut(part, other), self._simulation.cut(other, part)])

        def heal(_: Fault | None = None) -> None:
            for cut in cuts:
                self._simulation.heal(cut)
            cuts.clear()

        def confirmed(leader: str, node: str, *, last: bool) -> bool:
            beside = sorted((part if leader in part else self._cluster.machines - part) - {leader})
            if not beside or (only_last and not last):
                return False
            node = beside[fault.choice % len(beside)] if node == leader else node
            heal()
            part.symmetric_difference_update({node})
            divide()
            self._cluster.checker.cut(frozenset(part), fault.until_ns)
            self._cluster.note("fault", f"{node} changes sides")
            if reset:
                self._reset(Fault(0, "reset", (leader, node)))
            return True

        def over(_: Fault) -> None:
            heal()
            if confirmed in self._cluster.on_confirmed:
                self._cluster.on_confirmed.remove(confirmed)

        divide()
        self._cluster.on_confirmed.append(confirmed)
        self._later(fault, over)

    def _reset(self, fault: Fault) -> None:
        """To the leader this looks as if the launcher had ended; only that counts as its end."""
        until_s = self._cluster.setup.old_world_s + AWAY_MARGIN_S
        for node in fault.nodes:
            until_ns = self._simulation.now + round(until_s * _NS)
            self._cluster.checker.excuse(node, until_ns)
        self._simulation.break_connections(*fault.nodes)

    # --- etcd -----------------------------------------------------------------------------------

    def _member(self, fault: Fault) -> None:
        (member,), cluster = fault.nodes, self._cluster
        match fault.choice % 4:
            case 0:
                self._simulation.kill(member)
            case 1:
                self._simulation.power_off(member)
            case 2:
                cluster.stop_member(member)
                self._later(fault, lambda _: cluster.let_member_go_on(member))
                return
            case _:
                self._partition(fault)
                return

        def back(_: Fault) -> None:
            self._simulation.boot(member)
            cluster.start_member(member)

        self._later(fault, back)

    def _etcd(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.choice % 2:
            self._partition(fault)
            return
        for member in MEMBERS:
            cluster.stop_member(member)

        def over(_: Fault) -> None:
            for member in MEMBERS:
                cluster.let_member_go_on(member)

        self._later(fault, over)

    # --- requests -------------------------------------------------------------------------------

    def _exclude(self, fault: Fault) -> None:
        name = fault.nodes[0]
        agent = self._cluster.agents.get(name)
        if agent is not None and agent.ranks is not None and agent.ranks.alive:
            self._cluster.checker.asked_for_exclusion.add(name)
            self._cluster.tell(agent, m.ExclusionRequested(name, agent.ranks.round, "bad NIC"))

    def _leave(self, fault: Fault) -> None:
        name = fault.nodes[0]
        agent = self._cluster.agents.get(name)
        if agent is not None and self._simulation.is_alive(name):
            self._cluster.checker.told_to_leave.add(name)
            self._cluster.tell(agent, m.Preempted(name, 15, "SIGTERM"))

    def _order(self, fault: Fault) -> None:
        """What `undaunted ctl` makes of an order at a node: an event for the job policy."""
        name, what = fault.nodes[0], ORDERS[fault.choice % len(ORDERS)]
        agent, save = self._cluster.agents.get(name), fault.choice // len(ORDERS) % 2 == 1
        if agent is None or not self._simulation.is_alive(name):
            return
        busy = agent.ranks is not None and agent.ranks.alive
        if what == "exclude" and not busy:
            return
        number = max(agent.follower.round, agent.knows_round)
        about, checker = (name, number), self._cluster.checker
        order: m.NodeEvent
        if what == "restart":
            order = m.RestartOrdered(*about, BY_HAND, save)
            checker.free_rounds += 1
        elif what == "exclude":
            order = m.ExclusionOrdered(*about, name, BY_HAND, save)
            checker.free_rounds += 1
            checker.may_be_excluded.add(name)
            self._later(fault, lambda _: self._cluster.launch(name))
        elif what == "limits":
            order = m.LimitsOrdered(*about, {"step": 60.0}, BY_HAND)
        else:
            order = m.StopOrdered(*about, BY_HAND, save)
        self._cluster.note("fault", f"{what} is ordered at {name}")
        self._cluster.tell(agent, order)
