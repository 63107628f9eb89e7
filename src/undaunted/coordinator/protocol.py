"""Messages between agents and their leader, and among agents; see docs/design/coordination.md.

Typed by msgspec, sent as MessagePack. Reports and orders carry events and commands of the job
policy as these are. Fields are only added, with defaults: older builds ignore unknown ones. A
change that an older build cannot take raises `MAJOR`, as does another message, event or command.
"""

from __future__ import annotations

import msgspec

from undaunted.coordinator.lead.register import Member  # noqa: TC001 - decoded
from undaunted.coordinator.policy.messages import Memory, NodeCommand, NodeEvent

MAJOR = 11
MINOR = 0

# Longest frames, in bytes: before both sides have proved that they know the token, and after.
MAX_HANDSHAKE_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 1024 * 1024
# The same between a follower and its leader, where `Aside` may be longer.
MAX_LINK_BYTES = 9 * 1024 * 1024
# The same of what people are answered.
MAX_ANSWER_BYTES = 33 * 1024 * 1024


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    pass


# --- the ledger: what is remembered of a job; part of messages, and written down -----------------


class Seat(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A member of a table: who it is, where it listens, which ranks it has."""

    node: str
    incarnation: str
    address: str  # host:port for other agents; "" = it does not listen
    group_rank: int
    first_rank: int
    slots: int


class Ledger(Memory, frozen=True, kw_only=True):
    """All that must survive a leader, with its policy's memory; `newer` says which of two holds.

    Attributes:
        run_id: the job.
        epoch: of the leader who wrote it, when a quorum last agreed to that one; rises with every
            leader.
        version: rises with every change.
        leader: node that leads, "" = a separate host.
        committee: launchers that keep the ledger, and one of which leads next; () = nobody can take
            over: the leader keeps it alone, in a file or in etcd.
        before: committee of before, as long as this one may not have taken its place: a majority
            of both is needed.
        birth: epoch of the leader who has started the first round; a job that begins anew, since
            nobody of its earlier start is left, has a later one.
        round: of ``table``; -1 = none has begun.
        running: the round has been started and not stopped.
        table: members of the last round that was started.
        fenced: they stop their ranks when their lease is over, since others may take over then.
        pending_round, pending: table that is being prepared, if any.
        pending_fenced: as ``fenced``, for that one.
        attempt: how often the scheduler had started the job again; a leader of a later attempt does
            not go on with the job of an earlier one.
        replaceable: the members of ``table`` were told with the start that the job can go on
            without one of them: they stop when their lease is over.
    """

    run_id: str
    epoch: int = 0
    version: int = 0
    leader: str = ""
    committee: tuple[Member, ...] = ()
    before: tuple[Member, ...] = ()
    birth: int = 0
    round: int = -1
    running: bool = False
    table: tuple[Seat, ...] = ()
    fenced: bool = False
    pending_round: int = -1
    pending: tuple[Seat, ...] = ()
    pending_fenced: bool = False
    attempt: int = 0
    replaceable: bool = False


NO_LEDGER = Ledger(run_id="")


def has_committee(ledger: Ledger) -> bool:
    """Return whether others may lead next: launchers that keep the ledger of a begun job."""
    return ledger.round >= 0 and bool(ledger.committee)


def started(ledger: Ledger, version: int, *, replaceable: bool = False) -> Ledger:
    """The ledger once the round that was being prepared has been started.

    It was held by then, so that the committee before does not count any more.
    """
    return msgspec.structs.replace(
        ledger,
        version=version,
        birth=ledger.birth if ledger.round >= 0 else ledger.epoch,
        round=ledger.pending_round,
        running=True,
        table=ledger.pending,
        fenced=ledger.pending_fenced,
        before=(),
        pending=(),
        replaceable=replaceable,
    )


def stopped(ledger: Ledger, version: int, restarts_used: int, excluded: dict[str, str]) -> Ledger:
    """The ledger once the round has been told to stop."""
    return msgspec.structs.replace(
        ledger, version=version, running=False, restarts_used=restarts_used, excluded=excluded
    )


def brief(ledger: Ledger) -> Ledger:
    """The ledger without its tables: enough to say which of two is newer."""
    return msgspec.structs.replace(ledger, table=(), pending=())


def ended(ledger: Ledger) -> Ledger:
    """The rest of a job that has ended: later than the ledgers of those that missed that."""
    return Ledger(run_id="", epoch=ledger.epoch, version=ledger.version)


def newer(one: Ledger, other: Ledger) -> bool:
    """Return whether ``one`` replaces ``other``.

    A launcher that knows of no job may have a late epoch: a job that has begun goes first.
    """
    if (one.round < 0) != (other.round < 0):
        return other.round < 0
    return (one.epoch, one.version) > (other.epoch, other.version)


def further(one: Ledger, other: Ledger) -> bool:
    """Return whether ``one`` knows of a round, begun or prepared, that ``other`` does not know.

    A round that only an older ledger knows has been replaced: no quorum has begun it.
    """
    if one.round < 0 or not newer(one, other):
        return False
    return (one.birth, max(one.round, one.pending_round)) > (other.birth, other.round)


# --- handshake ----------------------------------------------------------------------------------


class Challenge(_Message, frozen=True):
    """First word of a server."""

    major: int
    minor: int
    build: str
    nonce: bytes


class Proof(_Message, frozen=True):
    """Answer of a client, the agent of ``node``, who wants to talk about ``run_id``."""

    major: int
    minor: int
    build: str
    run_id: str
    nonce: bytes
    mac: bytes
    node: str = ""


class Accepted(_Message, frozen=True):
    """The server's own proof; messages may follow."""

    mac: bytes


class Rejected(_Message, frozen=True):
    """The last word to a client."""

    reason: str


Handshake = Challenge | Proof | Accepted | Rejected


# --- from a follower ----------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """A node introduces itself, for the first time or again.

    Attributes:
        round, running: the round it knows of, and whether ranks of it are running here.
        ledger: the newest it knows.
        brief: without its tables: thousands of nodes come at once to a leader that knows them.
        tables: the digests of these, see `lead.tables`; a leader does not send them again.
        promised: it takes no orders of an earlier epoch.
        last_order: number of the last order it has carried out.
        settings: options that should be the same on all nodes, as they were given to it.
        program: name of the script, module or program that its ranks run, "" = unknown.
        stops_s: for how long ranks of the node of the leader that it has lost may live, if all have
            lost that one when it has; 0 = it has lost none.
        leader_ended: the launcher of the leader that has written the ledger has, and was followed
            until then, or had the address that this one has; False = it was said that another one
            leads in its place; None = this is not known.
    """

    node: str
    incarnation: str
    slots: int
    address: str = ""
    infra_rank: int | None = None
    domain: str = ""
    group: str = ""
    round: int = -1
    running: bool = False
    ledger: Ledger | None = None
    brief: bool = False
    tables: tuple[bytes, ...] = ()
    promised: int = 0
    last_order: int = 0
    settings: dict[str, str] = {}
    program: str = ""
    stops_s: float = 0.0
    leader_ended: bool | None = None


class Renew(_Message, frozen=True):
    """I live, and follow the leader of ``epoch``.

    Attributes:
        sent: when, by the follower's clock in ns; 0 = this is only to say what was answered.
        round: the last one that it knows to have been started.
        replaceable: as it was told for that round, see `Started`.
        answered: when it sent what the leader has answered last: it counts on the leader for a
            lease from then on. 0 = an older build does not say.
    """

    epoch: int
    sent: int = 0
    round: int = -1
    replaceable: bool = False
    answered: int = 0


class TakenOver(_Message, frozen=True):
    """Another one leads from now on: the answer to HandOver, or what the store has said first."""

    epoch: int


class Prepared(_Message, frozen=True):
    """I know the table; the node of rank 0 adds what it has reserved for it."""

    epoch: int
    version: int
    round: int
    master_addr: str = ""
    master_port: int = 0


class Report(_Message, frozen=True):
    """Something happened on this node; sent again until acknowledged.

    Attributes:
        number: rises by one with each report of this incarnation.
        event: for the job policy; of this node.
    """

    number: int
    event: NodeEvent


# --- from a leader ------------------------------------------------------------------------------

# Orders of a later leader have higher numbers: they begin at its epoch times this.
ORDERS_PER_EPOCH = 1 << 24


class Welcome(_Message, frozen=True):
    """You are a follower of mine. ``settings``: as in Hello; these hold."""

    epoch: int
    leader: str
    lease_s: float
    settings: dict[str, str] = {}


class Beat(_Message, frozen=True):
    """Answer to Renew, of which ``sent`` is; 0 = to something else.

    Attributes:
        acknowledged: number of the last report that was taken in.
        replaceable: as in Started, of the round that runs; it may become true.
        majority_s: from ``sent`` on, a majority of the committee counts on this leader for so long;
            None = there is no committee.
    """

    epoch: int
    acknowledged: int = 0
    sent: int = 0
    replaceable: bool = False
    majority_s: float | None = None


class HandOver(_Message, frozen=True):
    """My node leaves the job: lead it, under a later epoch of yours, from this ledger on."""

    epoch: int
    ledger: Ledger


class Refused(_Message, frozen=True):
    """You are not. ``final``: and never will be; otherwise try again."""

    reason: str
    final: bool = False
    leader: str = ""  # address of the one to ask, "" = not known
    taken: bool = False  # your name is another launcher's, which is heard of
    tables: bool = False  # come again at once, with a ledger that is not brief


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a table that is made of another one; see `lead.tables`.

    Attributes:
        first, count: so many seats of the other table, from that one on.
        new: seats that follow these.
    """

    first: int
    count: int
    new: tuple[Seat, ...] = ()


class Learn(_Message, frozen=True):
    """The ledger of the job. Orders refer to it, so that they are short in large jobs.

    Attributes:
        ledger: without its tables, if the follower has the first of them.
        table: the digest of that one then, see `Hello.tables`; b"" = the ledger is complete.
        pending: the second one, made of the first.
    """

    epoch: int
    ledger: Ledger
    table: bytes = b""
    pending: tuple[Piece, ...] = ()


class PrepareOrder(_Message, frozen=True):
    """Acknowledge that you know the ledger of ``version``, with a table that is being prepared.

    ``seat`` is your place in that table, -1 = none.
    """

    number: int
    epoch: int
    version: int
    seat: int = -1


class Started(_Message, frozen=True):
    """For the ledger: the table that was prepared as version ``prepared`` is that of a round.

    ``replaceable``: the job can go on without the node that hears this: its ranks must stop when
    its lease is over.
    """

    version: int
    prepared: int
    replaceable: bool = False


class Stopped(_Message, frozen=True):
    """For the ledger: the round is being stopped."""

    version: int
    restarts_used: int
    excluded: dict[str, str] = {}


class Order(_Message, frozen=True):
    """A command of the job policy to a node.

    Attributes:
        number: rises with each order; it is carried out once.
        epoch: of the leader.
        command: of the policy.
        change: what follows for the ledger, None = nothing.
    """

    number: int
    epoch: int
    command: NodeCommand
    change: Started | Stopped | None = None


# Messages of a leader to its followers.
TO_FOLLOWERS = (Beat, HandOver, Learn, PrepareOrder, Order)


# --- from both ----------------------------------------------------------------------------------


class Aside(_Message, frozen=True):
    """Something that is none of theirs, for what runs beside the other one; lost with the link.

    Attributes:
        data: at most `MAX_LINK_BYTES` less a kilobyte.
    """

    data: bytes


# --- among members ------------------------------------------------------------------------------


class Miss(_Message, frozen=True):
    """I cannot reach the leader (or, being it, a quorum) of ``epoch``; what do you know?

    ``leader``: I lead from there, and am sure of it: round ``round`` of the job of ``birth`` (see
    `Ledger`) has begun. As the last word to a leader that has not answered it means: I live, but do
    not count on you any more.
    """

    node: str
    incarnation: str
    epoch: int
    leader: str = ""
    birth: int = 0
    round: int = -1


class MissAnswer(_Message, frozen=True):
    """The knowledge of a member about the leader.

    Attributes:
        node, incarnation: of this member.
        epoch: of the leader that it follows, or has lost.
        lost: it cannot reach the leader either.
        leader: otherwise, where it hears the leader, "" = it does not know the address.
        round: the last that it knows to have begun, -1 = none.
        ledger_epoch: of the ledger it knows.
    """

    node: str
    incarnation: str
    epoch: int
    lost: bool
    round: int
    leader: str = ""
    ledger_epoch: int = 0


class Claim(_Message, frozen=True):
    """I want to lead from ``epoch`` on, with this ledger, which is brief; see `brief`."""

    node: str
    incarnation: str
    epoch: int
    ledger: Ledger


class Grant(_Message, frozen=True):
    """Answer to a claim: granted or not, and the newest epoch I know.

    Attributes:
        ledger: the one I know, if it is newer than that of the claim.
        stops_s: if a majority has lost the leader when I have, ranks of its node live for so long.
        others_stop_s: the same of ranks of other nodes, which may still follow it.
        successor: node whose claim was granted a moment before, and which may lead by now.
    """

    node: str
    incarnation: str
    epoch: int
    granted: bool
    ledger: Ledger | None = None
    stops_s: float = 0.0
    others_stop_s: float = 0.0
    successor: str = ""


# --- from people, and to them --------------------------------------------------------------------


class Question(_Message, frozen=True):
    """The only one of its connection; see docs/design/ctl.md. `Answer`, or `Refused`, follows.

    Attributes:
        data: none of the coordination's.
        node: the one that is asked, "" = the leader.
        by: the asker, where the leader passes it on; "" = the one that is connected.
    """

    data: bytes
    node: str = ""
    by: str = ""


class Answer(_Message, frozen=True):
    """To a question; ``data`` is none of the coordination's."""

    data: bytes


Message = (
    Hello
    | Renew
    | TakenOver
    | Prepared
    | Report
    | Welcome
    | Beat
    | HandOver
    | Refused
    | Learn
    | PrepareOrder
    | Order
    | Aside
    | Miss
    | MissAnswer
    | Claim
    | Grant
    | Question
    | Answer
)
