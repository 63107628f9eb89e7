"""What goes into the job policy and what comes out of it.

Nodes are known by name. A node that is lost and comes back is told to the policy as `NodeLost`,
then `NodeJoined`; which connection and which incarnation that is, is the leader's business.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from undaunted.coordinator.core.progress import NO_ITERATIONS, Iterations


class Outcome(enum.Enum):
    """How a job ends; the value is the launcher's exit code (see docs/exit-codes.md)."""

    FINISHED = ("finished", 0)
    FAILED = ("failed", 1)
    EXCLUDED = ("excluded", 1)
    PREEMPTED = ("preempted", 75)
    NO_RESTART = ("no_restart", 93)

    @property
    def label(self) -> str:
        """The name used in the journal."""
        return self.value[0]

    @property
    def exit_code(self) -> int:
        """The launcher's exit code."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node says of itself when it joins.

    Attributes:
        name: unique in the job.
        slots: ranks it offers.
        infra_rank: its place in the scheduler's order; None = the scheduler gives none.
        domain: NVLink domain, "" = one of its own.
        group: replacement group, "" = none.
    """

    name: str
    slots: int
    infra_rank: int | None = None
    domain: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """One node's part in a round: its ranks are ``first_rank`` .. ``first_rank + slots - 1``."""

    node: str
    group_rank: int
    first_rank: int
    slots: int


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is there, with nothing running on it.

    Of a node that is there already it only brings what it says of itself up to date.
    """

    info: NodeInfo


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Nobody hears of the node any more; whatever ran there is over or will be in a moment.

    ``reason`` names the node, for a person: ``node b is lost: connection reset``.
    ``returns``: it is expected back in a moment, and keeps its place until then.
    """

    node: str
    reason: str
    returns: bool = False


@dataclass(frozen=True, slots=True)
class NodeReturns:
    """A node of the last round was lost and is back; it joins once its ranks have ended."""

    node: str


@dataclass(frozen=True, slots=True)
class TableAccepted:
    """Every node of the prepared round has its table, and a quorum knows of it.

    ``master_addr`` and ``master_port`` are reserved on the node of rank 0.
    """

    round: int
    master_addr: str
    master_port: int


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A rank of the node crashed or hangs, or its workers could not be started.

    ``victim``: as far as the node can tell, only because ranks of another node are gone.
    """

    node: str
    round: int
    detail: str
    victim: bool = False


@dataclass(frozen=True, slots=True)
class RankLost:
    """The node goes on without one of its ranks, for good: it is healthy no more."""

    node: str
    round: int
    detail: str


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """Every rank of the node exited with 0, but for ``lost`` that others went on without."""

    node: str
    round: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class NodeStopped:
    """No process of the round is left on the node. ``all_ok``: every rank had exited with 0.

    ``iterations``: how far the round came. ``verdict``: what the node found out about its own
    failure in the meantime, "" = it has none or nothing new. ``misuse``: its ranks ended as do
    programs that are called with wrong arguments; None = no rank ended by itself.
    """

    node: str
    round: int
    all_ok: bool = False
    unkillable: tuple[int, ...] = ()
    iterations: Iterations = NO_ITERATIONS
    verdict: str = ""
    victim: bool = False
    misuse: bool | None = None


@dataclass(frozen=True, slots=True)
class NodeUnhealthy:
    """A check of the node has failed: it takes part in no round until an agent joins again."""

    node: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """A rank asked to end the workload for good, or ``by`` names who did."""

    node: str
    round: int
    description: str
    by: str = "a rank"


@dataclass(frozen=True, slots=True)
class ExclusionRequested:
    """A rank asked to go on without its node."""

    node: str
    round: int
    description: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """The launcher of a node was told by a signal to stop."""

    node: str
    signal: int
    signal_name: str


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """The leader cannot reach enough members to decide anything; ``reason`` names them."""

    reason: str


@dataclass(frozen=True, slots=True)
class QuorumRegained:
    """It can again."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by `SetTimer` ran out. ``round`` is what the command said.

    ``silent``: nodes that have not confirmed the table, for the timer ``prepare``.
    """

    name: str
    round: int
    silent: tuple[str, ...] = ()


Event = (
    NodeJoined
    | NodeLost
    | NodeReturns
    | TableAccepted
    | NodeFailed
    | RankLost
    | NodeFinished
    | NodeStopped
    | NodeUnhealthy
    | ShutdownRequested
    | ExclusionRequested
    | Preempted
    | QuorumLost
    | QuorumRegained
    | TimerFired
)


# --- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the table of a round known; answer with TableAccepted, or NodeLost of one of them.

    A later Prepare, of the same round or another, replaces one that has not been answered.
    """

    round: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Start a round on ``node``: its ranks are ``first_rank`` .. ``first_rank + slots - 1``."""

    node: str
    round: int
    group_rank: int
    group_world_size: int
    first_rank: int
    slots: int
    world_size: int
    max_restarts: int
    master_addr: str = ""
    master_port: int = 0
    epoch: int = 0  # of the leader


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the round on ``node``: ``signal`` now, SIGKILL after ``grace_s``."""

    node: str
    round: int
    reason: str
    grace_s: float
    signal: int = 15


@dataclass(frozen=True, slots=True)
class Decided:
    """For journal and user of every node: ``restart`` or ``end``. The last of a round holds."""

    round: int
    action: str
    reason: str
    restarts_left: int


@dataclass(frozen=True, slots=True)
class Blamed:
    """For journal and user of every node: the first cause of the end of a round, as a line.

    ``node`` is "" where it is no single node; ``victims`` are nodes that failed because of it.
    """

    round: int
    node: str
    line: str
    victims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remark:
    """A line for the user of every node, which changes nothing."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over for ``node``.

    ``round`` is the last one of the job, as far as is known where this is said. ``alone``: the node
    says so itself, and the job may go on elsewhere.
    """

    node: str
    outcome: Outcome
    reason: str
    round: int = -1
    alone: bool = False


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer with TimerFired(name, round) after ``delay_s``; replaces a timer of that name."""

    name: str
    round: int
    delay_s: float


Command = Prepare | Start | Stop | Decided | Blamed | Remark | End | SetTimer
