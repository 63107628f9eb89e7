"""Events and commands of the job policy.

Nodes are known by name. The policy hears of a node that is lost and comes back as `NodeLost`,
then `NodeJoined`; which connection and which incarnation that is, is the leader's business.

Between nodes and leader these same events and commands travel as part of `protocol.Report` and
`protocol.Order`.
"""

from __future__ import annotations

import enum

import msgspec

MOST_TIMES = 64 * 1024  # bytes of `NodeTimes`


class Outcome(enum.Enum):
    """The end of a job, by the name in the journal; see docs/exit-codes.md."""

    FINISHED = "finished"
    FAILED = "failed"
    EXCLUDED = "excluded"
    PREEMPTED = "preempted"
    NO_RESTART = "no_restart"
    SUSPECT = "suspect"
    INVALID = "invalid"
    STRAGGLER = "straggler"
    TOO_FEW_NODES = "too_few_nodes"

    @property
    def exit_code(self) -> int:
        """The launcher's exit code."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Outcome.FINISHED: 0,
    Outcome.FAILED: 1,
    Outcome.EXCLUDED: 1,
    Outcome.PREEMPTED: 75,
    Outcome.NO_RESTART: 93,
    Outcome.SUSPECT: 16,
    Outcome.INVALID: 17,
    Outcome.STRAGGLER: 18,
    Outcome.TOO_FEW_NODES: 19,
}


class Iterations(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The progress of a round, as one node knows it.

    Attributes:
        first: the iteration it began with (of a file: what was in it when the job started).
        last: the highest iteration reached; None = no iteration was begun, or see ``problem``.
        problem: why nothing is known, "" if something is or if no rank began an iteration.
    """

    first: int | None = None
    last: int | None = None
    problem: str = ""


NO_ITERATIONS = Iterations()


class _Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    pass


class NodeInfo(_Message, frozen=True):
    """The words of a node about itself when it joins.

    Attributes:
        name: unique in the job.
        slots: ranks it offers.
        infra_rank: its place in the scheduler's order; None = the scheduler gives none.
        domain: NVLink domain, "" = a separate one.
        group: replacement group, "" = none.
    """

    name: str
    slots: int
    infra_rank: int | None = None
    domain: str = ""
    group: str = ""


class Place(_Message, frozen=True):
    """One node's part in a round: its ranks are ``first_rank`` .. ``first_rank + slots - 1``."""

    node: str
    group_rank: int
    first_rank: int
    slots: int

    def has_any(self, ranks: tuple[int, ...]) -> bool:
        """Return whether one of these ranks is on the node."""
        return any(0 <= rank - self.first_rank < self.slots for rank in ranks)


# --- events -------------------------------------------------------------------------------------


class NodeJoined(_Message, frozen=True):
    """A node is there, with nothing running on it.

    Of a node that is there already it only brings what it says of itself up to date.
    """

    info: NodeInfo


class NodeLost(_Message, frozen=True):
    """Nobody hears of the node any more; whatever ran there is over or will be in a moment.

    ``reason`` names the node, for a person: ``node b is lost: connection reset``.
    ``returns``: it is expected back in a moment, and keeps its place until then.
    ``culprit``: the node to blame instead, "" = none of the job's; None = it is this one.
    """

    node: str
    reason: str
    returns: bool = False
    culprit: str | None = None


class NodeReturns(_Message, frozen=True):
    """A node of the last round was lost and is back; it joins once its ranks have ended."""

    node: str


class TableAccepted(_Message, frozen=True):
    """Every node of the prepared round has its table, and a quorum knows of it.

    ``master_addr`` and ``master_port`` are reserved on the node of rank 0.
    """

    round: int
    master_addr: str
    master_port: int


class NodeFailed(_Message, frozen=True):
    """A rank of the node crashed or hangs, or its workers could not be started.

    ``victim``: as far as the node can tell, only because ranks of another node are gone.
    ``hang``: a limit was passed, and nothing has ended; ``gone_on`` as in `HangSuspected`.
    ``by_signal``: while all are to stop, the signal for that has ended the rank, or its peer.
    ``cut_off``: the node has lost the leader that hears of it now, and stopped its ranks.
    """

    node: str
    round: int
    detail: str
    victim: bool = False
    hang: bool = False
    gone_on: int = 0
    by_signal: bool = False
    cut_off: bool = False


class HangSuspected(_Message, frozen=True):
    """A rank of the node has passed a limit; who is to blame is looked at.

    ``gone_on``: how often the node had been told in this round to go on; see `GoOn`.
    """

    node: str
    round: int
    detail: str = ""
    gone_on: int = 0


class NodeEvidence(_Message, frozen=True):
    """The view of a node on its ranks; opaque to the policy, b"" = nothing."""

    node: str
    round: int
    evidence: bytes = b""


class NodeTimes(_Message, frozen=True):
    """The times that each rank of the node has worked by itself in the last steps; opaque."""

    node: str
    round: int
    times: bytes = b""


class RankLost(_Message, frozen=True):
    """The node goes on without one of its ranks, for good: it is healthy no more."""

    node: str
    round: int
    detail: str


class NodeFinished(_Message, frozen=True):
    """Every rank of the node exited with 0, but for ``lost`` that others went on without."""

    node: str
    round: int
    lost: int = 0


class NodeStopped(_Message, frozen=True):
    """No process of the round is left on the node.

    ``all_ok``: every rank had exited with 0, its work done; not stopped before. ``iterations``: how
    far the round came. ``verdict``: what the node found out about its own failure in the meantime,
    "" = it has none or nothing new; ``finding``: the same for `Advise`, opaque to the policy.
    ``misuse``: its ranks ended as do programs that cannot run as they are called; None = no rank
    ended by itself. ``left``: ranks that have ended with 0, not stopped before.
    """

    node: str
    round: int
    all_ok: bool = False
    unkillable: tuple[int, ...] = ()
    iterations: Iterations = NO_ITERATIONS
    verdict: str = ""
    victim: bool = False
    misuse: bool | None = None
    finding: bytes = b""
    left: tuple[int, ...] = ()


class NodeUnhealthy(_Message, frozen=True):
    """A check of the node has failed: it takes part in no round until an agent joins again."""

    node: str
    round: int
    reason: str


class ShutdownRequested(_Message, frozen=True):
    """A rank asked to end the workload for good, or ``by`` names who did."""

    node: str
    round: int
    description: str
    by: str = "a rank"


class StopWanted(_Message, frozen=True):
    """A rank of the node wants all ranks to stop after the same iteration.

    ``why``: one of `progress.layout.WANTED`. ``rank``: which one is the reason. ``text``: what has
    happened, for people; "" = that is not said.
    """

    node: str
    round: int
    rank: int
    why: str
    text: str = ""

    @property
    def said(self) -> str:
        """The text, behind a sentence."""
        return f": {self.text}" if self.text else ""


class RanksAsked(_Message, frozen=True):
    """Ranks of the node that ask whether to stop wait from now on, as `Stop` has said.

    ``iteration``: the last one that any of them has asked about, -1 = none. ``fixed``: all of them
    stop after it, as a leader has said before. ``asks``: whether any rank asks at all.
    """

    node: str
    round: int
    iteration: int
    fixed: bool = False
    asks: bool = True


class ExclusionRequested(_Message, frozen=True):
    """A rank asked to go on without its node."""

    node: str
    round: int
    description: str


class RestartOrdered(_Message, frozen=True):
    """Somebody at ``node`` wants another round: ``by`` names who.

    ``save``: all ranks stop after the same iteration, and have their time to save.
    ``purpose``: of a launcher, for people; "" = a person wants it.
    """

    node: str
    round: int
    by: str
    save: bool = False
    purpose: str = ""


class StopOrdered(_Message, frozen=True):
    """Somebody at ``node`` wants the job to end, whatever it does; see `RestartOrdered`.

    ``few``: only where it waits for nodes, now or later: why no other node can come.
    """

    node: str
    round: int
    by: str
    save: bool = False
    few: str = ""


class ExclusionOrdered(_Message, frozen=True):
    """Somebody at ``node`` wants the job to go on without ``target``; see `RestartOrdered`."""

    node: str
    round: int
    target: str
    by: str
    save: bool = False


class LimitsOrdered(_Message, frozen=True):
    """Somebody at ``node`` wants all ranks held to other limits: ``by`` names who.

    ``limits``: in seconds, None = there is none; keys as in `progress.limits.Limits.sources`.
    """

    node: str
    round: int
    limits: dict[str, float | None]
    by: str


class Preempted(_Message, frozen=True):
    """The launcher of a node was told by a signal to stop."""

    node: str
    signal: int
    signal_name: str


class QuorumLost(_Message, frozen=True):
    """The leader cannot reach enough members to decide anything; ``reason`` names them.

    ``grace_s``: what ranks get between SIGTERM and SIGKILL, as others may take their places.
    ``counts``: the restart that follows uses the budget. ``final``: there will be no quorum again.
    """

    reason: str
    grace_s: float = 2.0
    counts: bool = True
    final: bool = False


class QuorumRegained(_Message, frozen=True):
    """The leader can reach enough members again."""


class TimerFired(_Message, frozen=True):
    """A timer set by `SetTimer` ran out. ``round`` is what the command said.

    ``silent``: nodes that have not confirmed the table, for the timer ``prepare``.
    """

    name: str
    round: int
    silent: tuple[str, ...] = ()


# The fate of the ranks of a node.
Happened = NodeFailed | HangSuspected | NodeEvidence | NodeTimes | RankLost | NodeFinished
# Wishes of ranks, and orders of people.
Wanted = ShutdownRequested | ExclusionRequested | StopWanted | RanksAsked
Ordered = RestartOrdered | StopOrdered | ExclusionOrdered | LimitsOrdered
# Reports of a node about itself.
NodeEvent = Happened | NodeStopped | NodeUnhealthy | Wanted | Ordered | Preempted
# Facts that the leader knows by itself.
LeaderEvent = NodeJoined | NodeLost | NodeReturns | TableAccepted | QuorumLost | QuorumRegained
Event = NodeEvent | LeaderEvent | TimerFired


# --- what is remembered -------------------------------------------------------------------------


class Memory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The memory of the policy, for the next leader; part of the ledger.

    Attributes:
        restarts_used: of the job's budget.
        excluded: node to reason.
        reached: highest iteration reached, None = unknown.
        stalled: one text per round in a row without progress.
        history: of the rounds that are over, see `verdict`.
        failure: of the last round, see `verdict.Advice`.
        slow: ranks whose node was left out since they were slow.
        turned: by how many places ranks are on other slots than in the first round.
        limits: that somebody has ordered for all ranks, None = nobody has.
        stop: somebody has ordered the end of the job, None = nobody has.
    """

    restarts_used: int = 0
    excluded: dict[str, str] = {}
    reached: int | None = None
    stalled: tuple[str, ...] = ()
    history: bytes = b""
    failure: str = ""
    slow: tuple[int, ...] = ()
    turned: int = 0
    limits: NewLimits | None = None
    stop: StopOrdered | None = None


NOTHING = Memory()


# --- commands -----------------------------------------------------------------------------------


class Prepare(_Message, frozen=True):
    """Make the table of a round known; answer with TableAccepted, or NodeLost of one of them.

    A later Prepare, of the same round or another, replaces one that has not been answered.
    """

    round: int
    places: tuple[Place, ...]


class Start(_Message, frozen=True):
    """Start a round on ``node``: its ranks are ``first_rank`` .. ``first_rank + slots - 1``.

    ``turned``: by so many places the ranks are on other slots than usual: local rank 0 has rank
    ``first_rank + turned``, the next one the next rank, and after the last rank comes the first.
    ``failure``: how the last round failed, for the ranks; opaque, "" = it did not.
    """

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
    turned: int = 0
    failure: str = ""

    def rank(self, local_rank: int) -> int:
        """Return the global rank of a local one."""
        return self.first_rank + (local_rank + self.turned) % self.slots


class Stop(_Message, frozen=True):
    """Stop the round on ``node``: ``signal`` now, SIGKILL after ``grace_s``.

    ``agree``: why ranks stop after the same iteration, if they ask whether to stop: one of
    `progress.layout.WANTED`, or ``restart``, as another round follows. The node answers with
    `RanksAsked`, and signals nobody before `StopAfter`. "" = all get the signal.

    ``failed``: something has failed, and ranks of ``node`` may have done so before, unseen as yet.
    """

    node: str
    round: int
    reason: str
    grace_s: float
    signal: int = 15
    agree: str = ""
    failed: bool = False


class StopAfter(_Message, frozen=True):
    """Ranks of ``node`` that ask stop after ``iteration``: the same everywhere.

    -1 = no rank of the job asks, so that all get the signal.
    """

    node: str
    round: int
    iteration: int


class Gather(_Message, frozen=True):
    """Look at the ranks of the round on ``node``, and answer with NodeEvidence; stop nothing."""

    node: str
    round: int


class GoOn(_Message, frozen=True):
    """Another node is to blame for a hang, for which ranks of ``node`` wait: these go on.

    Limits count from now on, whether or not one was passed. Earlier words of the node about a hang
    count no more.
    """

    node: str
    round: int


class Decided(_Message, frozen=True):
    """For journal and user of every node: ``restart`` or ``end``. The last of a round holds.

    ``by``: who has ordered it, for which ``purpose``; a restart costs none then. "" = nobody.
    """

    round: int
    action: str
    reason: str
    restarts_left: int
    by: str = ""
    purpose: str = ""


class Blamed(_Message, frozen=True):
    """For journal and user of every node: the first cause of the end of a round, as a line.

    Or of a hang after which healthy nodes go on; of what ends the round later there is another one.
    ``node`` is "" where it is no single node; ``victims`` are nodes that failed because of it.
    ``ranks``, ``cause`` and whether they are ``certain`` are known where all nodes were looked at,
    see `examination.Ruling`. ``lost``: the node is gone, and can say nothing itself. ``paused``:
    its leader stood still, and missed others since then; ``line`` says so.
    """

    round: int
    node: str
    line: str
    victims: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    cause: str = ""
    certain: bool = True
    lost: bool = False
    paused: bool = False


class Advised(_Message, frozen=True):
    """For journal and user of every node: what is best done after a round that failed.

    ``action`` is ``restart``, ``exclude`` (go on without ``nodes``) or ``stop``; ``cause`` as in
    `examination.Ruling`, of ``ranks``, with its ``confidence`` from 0 to 1. ``done``: the job does
    so; otherwise it is advice only. ``failure``: see `Start`.
    """

    round: int
    action: str
    reason: str
    nodes: tuple[str, ...] = ()
    cause: str = ""
    done: bool = False
    ranks: tuple[int, ...] = ()
    confidence: float = 1.0
    failure: str = ""


class Slow(_Message, frozen=True):
    """For journal and user of every node: a rank is slower than its peers, or is not any more.

    Attributes:
        line: all of it, for people; "" = they need not hear of it again.
        over: it is as fast as the others again, or not compared with them any more.
        slower: by which share of the time that its peers need for the same work.
        lost: which share of the time of a step is lost by it.
        beside: what it spends more time on than others do, as names.
    """

    round: int
    node: str
    rank: int
    line: str
    over: bool = False
    slower: float = 0.0
    lost: float = 0.0
    beside: tuple[str, ...] = ()


class Say(_Message, frozen=True):
    """A line for the user of every node, which changes nothing.

    ``by``: who has ordered what this line answers, "" = nobody. ``refused``: the answer is no.
    ``pause_s``: the line tells of a pause of so many seconds before the next round.
    """

    text: str
    refused: bool = False
    by: str = ""
    pause_s: float = 0.0


class NewLimits(_Message, frozen=True):
    """Every node holds its ranks to these limits from now on; see `LimitsOrdered`."""

    limits: dict[str, float | None]
    by: str


class End(_Message, frozen=True):
    """The job is over for ``node``.

    ``round`` is the last one of the job, as far as the sender knows. ``alone``: the node ends by
    itself, and the job may go on elsewhere. ``by``: who has ordered it, "" = nobody.
    """

    node: str
    outcome: Outcome
    reason: str
    round: int = -1
    alone: bool = False
    by: str = ""


class SetTimer(_Message, frozen=True):
    """Answer with TimerFired(name, round) after ``delay_s``; replaces a timer of that name."""

    name: str
    round: int
    delay_s: float


# News for all nodes; they change nothing of the round.
Note = Decided | Blamed | Advised | Slow | Say | NewLimits
# Orders and news for a node.
NodeCommand = Start | Stop | StopAfter | Gather | GoOn | End | Note
Command = NodeCommand | Prepare | SetTimer
