"""Questions to a running launcher: where its socket is, and the messages there and over the wire.

One question and one answer for each connection: JSON in `protocol.Question` and `protocol.Answer`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Annotated

import msgspec

from undaunted.attribution.flight.recording import Recording  # noqa: TC001 - decoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

VERSION = 1
MOST_ASKED = 64 * 1024  # bytes of a question
MOST_ANSWERED = 32 * 1024 * 1024  # bytes of an answer
MARGIN = 1024  # bytes of what is around them
PREFIX, SUFFIX = "ctl-", ".sock"
COORDINATOR = "(coordinator)"  # the name of one on a separate host; no node can have it
_LONGEST_NAME = 64  # of the file; the whole path of a Unix socket has at most 107 bytes
_LONGEST_PATH = 107
MOST_LIMITS = 64  # of one order
LONGEST_SECTION = 64  # characters of its name
_Limit = Annotated[
    str,
    msgspec.Meta(
        pattern="^(heartbeat|initial_heartbeat|out_of_section|section:.{1,%d})$" % LONGEST_SECTION  # noqa: UP031
    ),
]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Node = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


# --- questions ------------------------------------------------------------------------------------


class _Question(msgspec.Struct, frozen=True, tag_field="action", tag=str.lower):
    v: int = VERSION


class Status(_Question, frozen=True):
    """A question about the run, the leader, the limits in force. The answer is a `NodeStatus`."""


class Stacks(_Question, frozen=True):
    """A question about the work of all ranks of the node. The answer is a list of `RankStacks`."""


class Flight(_Question, frozen=True):
    """A question about their Flight Recorders. The answer is a list of `RankRecording`."""


class Dump(_Question, frozen=True):
    """The last events and commands of each state machine. Answered with a list of lines."""


class Restart(_Question, frozen=True):
    """Stop the round, and begin another one. ``save``: with the time of a launcher's SIGTERM."""

    save: bool = False


class Stop(_Question, frozen=True):
    """End the job. ``save``: as in `Restart`."""

    save: bool = False


class NoOthers(_Question, frozen=True, kw_only=True):
    """End the job if it waits for nodes, now or later: no other can come, and ``why``."""

    why: str


class Exclude(_Question, frozen=True, kw_only=True):
    """Go on without a node."""

    target: _Node
    save: bool = False


class Limits(_Question, frozen=True, kw_only=True):
    """Hold all ranks of the job to other limits: seconds by name, None = there is none."""

    limits: Annotated[
        dict[_Limit, _Seconds | None], msgspec.Meta(min_length=1, max_length=MOST_LIMITS)
    ]


Order = Restart | Stop | NoOthers | Exclude | Limits
Question = Status | Stacks | Flight | Dump | Order


def question_of(data: bytes) -> Question:
    """Read a question.

    Raises:
        ValueError: it is something else, or of another version.
    """
    if len(data) > MOST_ASKED:
        raise ValueError(f"a question of {len(data)} bytes; {MOST_ASKED} are the most")
    try:
        asked = msgspec.json.decode(data)
        version = asked.get("v", VERSION) if isinstance(asked, dict) else VERSION
        if version != VERSION:
            raise ValueError(f"a question of version {version!r}; this launcher knows {VERSION}")
        question: Question = msgspec.convert(asked, Question)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no question that this launcher knows: {error}") from None
    return question


# --- answers --------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True):
    """The answer to every question.

    Attributes:
        v: of the protocol.
        node: who answers.
        error: why there is no answer, "" = there is one.
        body: it, see the questions; of an `Order` it is a `Decision`.
    """

    v: int = VERSION
    node: str = ""
    error: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")


class Decision(msgspec.Struct, frozen=True):
    """The outcome of an order, in a line; ``done``: it is carried out."""

    line: str
    done: bool = True


class RankStacks(msgspec.Struct, frozen=True):
    """The stacks of a rank.

    Attributes:
        rank, local_rank, pid: who it is.
        state: of its process, in words.
        iteration: the last one that it began, None = none.
        frame: innermost frame of the user's code in the main thread, "" = not known.
        waits_in: the communication it waits in, or "".
        stacks: of all its threads, "" = there are none.
        reason: why not.
    """

    rank: int
    local_rank: int
    pid: int
    state: str
    iteration: int | None = None
    frame: str = ""
    waits_in: str = ""
    stacks: str = ""
    reason: str = ""


class RankRecording(msgspec.Struct, frozen=True):
    """The recording of a rank, None = nothing; ``deaf``: it did not answer."""

    rank: int
    pid: int
    recording: Recording | None = None
    deaf: bool = False


class RankStatus(msgspec.Struct, frozen=True):
    """A rank: phase, iteration and section as in its page; ``ended``: how, "" = it runs."""

    rank: int
    local_rank: int
    pid: int
    phase: str
    iteration: int | None = None
    heartbeat_age_s: float | None = None
    sections: dict[str, float] = {}
    ended: str = ""


class LimitStatus(msgspec.Struct, frozen=True):
    """A limit, the ranks that it holds for now, and where it comes from."""

    name: str
    seconds: float | None
    source: str
    ranks: list[int]


class MemberStatus(msgspec.Struct, frozen=True):
    """A node of the round. ``lease_left_s``: as the leader has it; None = it does not hear of it.

    ``votes``: whether it has a vote when a leader is elected.
    """

    node: str
    ranks: list[int]
    votes: bool = False
    lease_left_s: float | None = None


class JobStatus(msgspec.Struct, frozen=True):
    """The state of the job, as this node knows it.

    Attributes:
        role: ``alone``, ``leader``, ``follower``.
        state: of the state machine that has this role.
        leader: name of the leader's node, or `COORDINATOR`; "" = not known.
        leader_address: where it is.
        epoch: of the leader.
        round: the last one that was started, -1 = none.
        then: what follows once the round is stopped; "" = it is not being stopped, or only the
            leader knows.
        pause_left_s: until the next round may begin, if it is put off; None = it is not, or only
            the leader knows.
        restarts_used, restarts_left: None = only the leader knows.
        lease_s, lease_left_s: of this node at its leader; None = it has none. Less than 0 while
            the leader is silent or gone.
        members: nodes of the round.
        spares: nodes that wait; None = only the leader knows.
        excluded: node to reason.
    """

    role: str
    state: str
    leader: str = ""
    leader_address: str = ""
    epoch: int = 0
    round: int = -1
    restarts_used: int | None = None
    restarts_left: int | None = None
    then: str = ""
    pause_left_s: float | None = None
    lease_s: float | None = None
    lease_left_s: float | None = None
    members: list[MemberStatus] = []
    spares: list[str] | None = None
    excluded: dict[str, str] = {}

    @property
    def heard_s(self) -> float | None:
        """Return how long ago the leader answered what this node had sent, None = it has none."""
        if self.lease_s is None or self.lease_left_s is None:
            return None
        return self.lease_s - self.lease_left_s


class NodeStatus(msgspec.Struct, frozen=True):
    """The state of a node, and of the job as it knows it.

    Attributes:
        node, pid, version: of the launcher, or coordinator.
        run_id: of the job.
        state: of the node, see `agent.node`.
        round: that runs, or ran last.
        job, ranks, limits: see there.
    """

    node: str
    pid: int
    version: str
    run_id: str
    state: str
    round: int
    job: JobStatus
    ranks: list[RankStatus] = []
    limits: list[LimitStatus] = []


async def answered(node: str, data: bytes, reply: Callable[[Question], Awaitable[bytes]]) -> bytes:
    """Return the answer to a question, whatever it is.

    Args:
        node: who answers.
        data: the question.
        reply: returns the body of the answer; `ValueError` says why there is none.
    """
    body, problem = b"null", ""
    try:
        body = await reply(question_of(data))
    except ValueError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - a bug in here is no reason to end a job
        problem = f"a bug of undaunted: {type(error).__name__}: {error}"
    if len(body) > MOST_ANSWERED:
        body, problem = b"null", f"the answer has {len(body)} bytes, too many"
    return msgspec.json.encode(Answer(node=node, error=problem, body=msgspec.Raw(body)))


# --- where it is ----------------------------------------------------------------------------------


def file_name(node: str) -> str:
    """Return the name of a node's socket in the run directory."""
    name = f"{PREFIX}{node}{SUFFIX}"
    if len(name) <= _LONGEST_NAME:
        return name
    short = hashlib.blake2b(node.encode(), digest_size=8).hexdigest()
    return f"{PREFIX}{node[:32]}-{short}{SUFFIX}"


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Give a name for a socket's file that fits into an address, as long as the body runs.

    Raises:
        OSError: its directory cannot be opened.
    """
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
