"""What job is simulated."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.etcd.members import MEMBERS, URL
from undaunted.coordinator.lead.register import FEWEST
from undaunted.coordinator.lead.times import Durations
from undaunted.coordinator.policy.budget import Intensity
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.verdict import Advice, Attempt, Case, Ruling
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.run_config import RunConfig

# The port of every agent and of a coordinator on a host of its own.
PORT = 1
RUN_ID = "simulated"
COORDINATOR = "coordinator"
_FIRST = "n000"
# Who gives an order, as it is named in what follows from it.
BY_HAND = "undaunted ctl"

# Short enough for a job that is beyond help to end within the simulation, and longer than faults
# last, so that nobody gives up before it is known whether the job runs again.
JOIN_TIMEOUT_S = 120.0
GIVE_UP_S = 120.0
AWAY_TIMEOUT_S = 20.0
LEASE_S = 5.0
LASTS = Durations(LEASE_S)
TERM_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Setup:
    """One job.

    Attributes:
        nodes: nodes a round needs (MIN of ``--nnodes MIN:MAX``).
        spares: further nodes (MAX - MIN).
        elastic: as many nodes as there are take part.
        min_healthy: so they do, and a round goes on while ``nodes`` of them have all their ranks.
        standalone: the coordinator has a host of its own; otherwise the first node leads at first.
        etcd: who leads is decided in etcd, which has three members on machines of their own.
        ordered: nodes have infrastructure ranks.
        slots: ranks per node.
        max_restarts: of the whole job.
        restart_intensity: besides, so many restarts within so many seconds; None = no limit.
    """

    nodes: int
    spares: int = 0
    elastic: bool = False
    min_healthy: bool = False
    standalone: bool = False
    etcd: bool = False
    ordered: bool = False
    slots: int = 2
    max_restarts: int = 100
    restart_intensity: tuple[int, float] | None = None

    @property
    def names(self) -> list[str]:
        """The nodes that are there at the beginning."""
        return [_FIRST, *(f"n{number:03}" for number in range(1, self.nodes + self.spares))]

    @property
    def etcd_members(self) -> tuple[str, ...]:
        """Machines of etcd."""
        return MEMBERS if self.etcd else ()

    @property
    def endpoint(self) -> str:
        """Address of the first leader, "" = nobody knows it before."""
        if self.etcd:
            return ""
        return address_of(COORDINATOR if self.standalone else _FIRST)

    @property
    def exact(self) -> bool:
        """Whether it is known when things happened, to the moment; of a real job it is not."""
        return True

    @property
    def votes(self) -> bool:
        """Whether nodes may take over, so that parts of a job without a quorum stop early."""
        return self.etcd or (not self.standalone and self.nodes >= FEWEST)

    @property
    def old_world_s(self) -> float:
        """When a round runs, every node of an older one has been told to stop so long after."""
        stops_s = LASTS.stops_after_reset_s + LASTS.grace_s
        return LEASE_S + (stops_s if self.votes else AWAY_TIMEOUT_S)

    @property
    def longest_pause_s(self) -> float:
        """What a job waits before a restart, at most."""
        most = 0 if self.restart_intensity is None else self.restart_intensity[0]
        return Intensity(self.restart_intensity, set(range(most))).pause_s

    def config(self, name: str) -> RunConfig:
        """What the launcher of a node is told."""
        nodes = Nodes(
            min_nodes=self.nodes,
            max_nodes=self.nodes + self.spares,
            elastic=self.elastic,
            restart_policy="min-healthy" if self.min_healthy else "any-failed",
            endpoints=[] if self.etcd else [self.endpoint],
            is_host=address_of(name) == self.endpoint,
            store=URL if self.etcd else "",
            address=name,
            infra_rank=int(name[1:]) if self.ordered else None,
            join_timeout_s=GIVE_UP_S,
            first_round_timeout_s=GIVE_UP_S,
            lease_s=LEASE_S,
            away_timeout_s=AWAY_TIMEOUT_S,
        )
        return RunConfig(
            run_id=RUN_ID,
            node=name,
            nodes=nodes,
            nproc_per_node=self.slots,
            max_restarts=self.max_restarts,
            restart_intensity=self.restart_intensity,
            term_timeout_s=TERM_TIMEOUT_S,
            kind="program",
            target="",
            args=[],
            cwd="",
            run_dir="",
            log_dir="",
            stdout=[],
            stderr=[],
        )

    @property
    def policy(self) -> PolicyConfig:
        """What the job policy is told."""
        return PolicyConfig(
            min_nodes=self.nodes,
            max_nodes=self.nodes + self.spares,
            elastic=self.elastic,
            min_healthy=self.min_healthy,
            max_restarts=self.max_restarts,
            restart_intensity=self.restart_intensity,
            max_no_progress_cycles=0,
            term_timeout_s=TERM_TIMEOUT_S,
            first_timeout_s=JOIN_TIMEOUT_S,
            join_timeout_s=JOIN_TIMEOUT_S,
            rule=_rule,
            advise=_advise,
        )


def _rule(case: Case) -> Ruling:
    """Name the first node that says that a rank hangs: for sure, most likely, or not at all."""
    hung = [place for place in case.places if case.evidence.get(place.node) == b"hangs"]
    how = (case.round + hung[0].group_rank) % 3 if hung else 0
    if how == 0:
        return Ruling()
    node = hung[0].node
    ranks = tuple(place.first_rank for place in hung)
    victims = tuple(place.node for place in case.places if place not in hung)
    line = f"rank hangs on node {node}"
    return Ruling(line, node, ranks, victims=victims, certain=how == 1)


def _advise(history: bytes, attempt: Attempt) -> Advice:
    """Add the round to the history; what is advised is no matter of coordination."""
    return Advice(None, history + attempt.round.to_bytes(2, "big"))


def address_of(machine: str) -> str:
    """Where the agent, or the coordinator, of a machine listens."""
    return f"{machine}:{PORT}"
