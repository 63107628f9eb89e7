"""Events and commands of leaders and followers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.policy import messages as m
    from undaunted.coordinator.policy.config import PolicyConfig


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """The knowledge of a leader.

    Attributes:
        run_id: the job.
        policy: of the job.
        node: the node it runs on, "" = on a separate host.
        incarnation: random text that no other agent or leader has.
        takeover: members may take over.
        address: where its node can be reached, "" = nobody needs to know.
        endpoints: where other leaders of this job may be that are no members.
        lease_s: a follower that is silent for so long is lost.
        away_timeout_s: as in `FollowerConfig`.
        store: etcd says who leads: another launcher may claim that at any time, and nothing starts
            before the ledger is there.
        settings: as in `protocol.Hello`; these hold.
        attempt: see `protocol.Ledger`.
        program: as in `protocol.Hello`, of its node.
    """

    run_id: str
    policy: PolicyConfig
    node: str = ""
    incarnation: str = ""
    takeover: bool = True
    address: str = ""
    endpoints: tuple[str, ...] = ()
    lease_s: float = 5.0
    away_timeout_s: float = 60.0
    store: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    attempt: int = 0
    program: str = ""


@dataclass(frozen=True, slots=True)
class FollowerConfig:
    """The knowledge of a follower from its command line.

    Attributes:
        node, incarnation, slots, address, infra_rank, domain, group: as in `protocol.Hello`.
        endpoints: where a leader may be found at first, ``host:port`` each; may be empty where a
            ``store`` says it.
        lease_s: until a leader's lease is known.
        away_timeout_s: without a leader, and when nobody can take over, ranks go on so long.
        term_timeout_s: from a signal to the launcher until SIGKILL to its ranks.
        give_up_s: so long after there is neither a leader nor a running rank, the node ends.
        first_give_up_s: the same until a leader has been found for the first time; None = as later.
        store: where it is decided who leads, "" = among the members.
        settings, program: as in `protocol.Hello`.
    """

    node: str
    incarnation: str
    slots: int
    endpoints: tuple[str, ...]
    address: str = ""
    infra_rank: int | None = None
    domain: str = ""
    group: str = ""
    lease_s: float = 5.0
    away_timeout_s: float = 60.0
    term_timeout_s: float = 1800.0
    give_up_s: float = 300.0
    first_give_up_s: float | None = None
    store: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    program: str = ""


class _Message(msgspec.Struct, frozen=True, gc=False):
    """Made for every event: a struct takes a fifth of the time of a frozen dataclass."""


# --- events of both -----------------------------------------------------------------------------


class Begin(_Message, frozen=True):
    """The first event."""


class Received(_Message, frozen=True):
    """The other side said something: the leader, a follower, or somebody who wants to be one."""

    link: int  # never used again
    message: p.Message


class Closed(_Message, frozen=True):
    """The connection is gone, or could not be made.

    Attributes:
        link, reason: which one, and why.
        silent: the other side has not ended it, and may live.
        refused: one side does not want the other: version, token, job or name do not fit.
        ended: nobody listens there, so that the launcher of that address has ended.
    """

    link: int
    reason: str
    silent: bool = False
    refused: bool = False
    ended: bool = False


class Answered(_Message, frozen=True):
    """Answer to `Ask`; None = there was none within its deadline.

    ``ended``: nobody listens there, so that the launcher has ended.
    """

    node: str
    message: p.Message | None
    ended: bool = False


class TimerFired(_Message, frozen=True):
    """A timer set by `SetTimer` ran out."""

    name: str
    round: int = 0


# --- events of a leader -------------------------------------------------------------------------


class Persisted(_Message, frozen=True):
    """This version of the ledger, or a later one, has been written down; see `Persist`."""

    version: int


class Deposed(_Message, frozen=True):
    """The register has given the lead to another launcher."""

    reason: str


class Holds(_Message, frozen=True):
    """Others can see in the store that this leader is there, or ``held`` is False: not any more.

    Then another one may lead soon, where that one is not in the way of the members that follow.
    """

    held: bool


LeaderEvent = Begin | Received | Closed | Answered | Persisted | Deposed | Holds | TimerFired


# --- events of a follower -----------------------------------------------------------------------


class Opened(_Message, frozen=True):
    """The connection asked for by `Dial` stands, handshake included."""

    link: int


class Asked(_Message, frozen=True):
    """Another member asks; answer with `Answer`."""

    question: int
    message: p.Miss | p.Claim


class Tell(_Message, frozen=True):
    """Something has happened on the node; the leader hears of it."""

    event: m.NodeEvent


class TableKnown(_Message, frozen=True):
    """Answer to `Prepare`: what the round needs of the node is reserved."""

    round: int
    version: int
    master_addr: str = ""
    master_port: int = 0


class LeaderAt(_Message, frozen=True):
    """The store says who leads; ``address`` "" = nobody, for a ``reason`` if it is known.

    ``epoch``: of that leader, or an earlier one.
    """

    address: str
    reason: str = ""
    epoch: int = 0


FollowerEvent = (
    Begin
    | Opened
    | Received
    | Closed
    | LeaderAt
    | Answered
    | Asked
    | Tell
    | TableKnown
    | TimerFired
)


# --- commands of both ---------------------------------------------------------------------------


class Send(_Message, frozen=True):
    """Say something to the other side."""

    link: int
    message: p.Message


class Ask(_Message, frozen=True):
    """Ask a member that is not connected; answer with Answered, in time."""

    node: str
    address: str
    message: p.Miss | p.Claim


class SetTimer(_Message, frozen=True):
    """Answer with TimerFired(name, round) after ``delay_s``; replaces a timer of that name."""

    name: str
    delay_s: float
    round: int = 0


# --- commands of a leader -----------------------------------------------------------------------


class Close(_Message, frozen=True):
    """Close a connection; no answer."""

    link: int


class Persist(_Message, frozen=True):
    """Write the ledger down, when there is time."""

    ledger: p.Ledger


class Done(_Message, frozen=True):
    """The leader has nothing more to do. ``successor``: address of the leader that replaced it."""

    successor: str = ""


LeaderCommand = Send | Close | Ask | Persist | SetTimer | Done


# --- commands of a follower ---------------------------------------------------------------------


class Dial(_Message, frozen=True):
    """Connect to ``address``; answer with Opened or Closed."""

    link: int
    address: str


class Hangup(_Message, frozen=True):
    """Close a connection; no answer."""

    link: int


class Answer(_Message, frozen=True):
    """The answer to `Asked`."""

    question: int
    message: p.MissAnswer | p.Grant


class Prepare(_Message, frozen=True):
    """The node takes part in a round whose table is being prepared; answer with TableKnown.

    The node of group rank 0 reserves the address and port that all ranks of the round connect to.
    """

    round: int
    version: int
    group_rank: int


class Deliver(_Message, frozen=True):
    """A command of the policy to this node; each comes once and in order."""

    command: m.NodeCommand


class StopRanks(_Message, frozen=True):
    """Stop whatever runs here, without an order: this node may be in a minority, or leaves."""

    round: int
    reason: str
    grace_s: float
    signal: int = 15


class Lead(_Message, frozen=True):
    """This node has been made the leader of ``epoch``; begin with this ledger."""

    epoch: int
    ledger: p.Ledger
    lost: str  # the node that led before
    silent: tuple[str, ...] = ()  # nodes that have not answered lately: they are not waited for
    stops_s: float = 0.0  # ranks of that node may live for so long
    others_stop_s: float | None = None  # those of others, which nobody has heard; None = not known


class Missed(_Message, frozen=True):
    """With a store: the leader cannot be reached; another one may lead.

    Attributes:
        lost: it was followed, and has not said that it leads no more.
        ended: address where it was followed and nobody listens any more, "" = that is not known.
        turn: how many members of the last round, but for the leader, come before this node; None =
            it is none of them.
    """

    lost: bool = False
    ended: str = ""
    turn: int | None = None


class Found(_Message, frozen=True):
    """With a store: a leader is followed."""


class StandDown(_Message, frozen=True):
    """If this node leads: no more. Somebody else does, with a later epoch."""


class Leave(_Message, frozen=True):
    """The launcher was told to stop, its ranks have, and there is no leader to ask."""

    reason: str


class GiveUp(_Message, frozen=True):
    """There is no leader, and there will be none; ``lost``: there was one."""

    reason: str
    lost: bool = False


class Say(_Message, frozen=True):
    """A line for the user."""

    text: str


# Words to others, and tasks of this node.
ToOthers = Dial | Hangup | Send | Ask | Answer
OfNode = Prepare | Deliver | StopRanks | Lead | StandDown | Missed | Found | Leave | GiveUp
FollowerCommand = ToOthers | OfNode | SetTimer | Say
