"""What ranks, guards and the controller of in-process restart say to each other.

A rank talks to its guard, a guard to the controller, with the same messages. All carry the job
rank, which names a process for its whole life, and the number of the call. MessagePack on the wire.

Times are durations in seconds; they never leave the host whose clock they were taken from.
"""

from __future__ import annotations

from typing import Any

import msgspec

# A record for many ranks, with what their rank assignment wants to know, must fit.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
VERSION = 1


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an epoch is over, or a rank lost.

    Attributes:
        kind: name of an `undaunted.inprocess.attribution.Interruption`.
        job_rank: the rank that it is about.
        rank: the rank it had in that epoch, -1 = none yet.
        text: for people; at most 1000 characters.
        fingerprint: equal for two failures that are probably the same, "" = unknown.
        where: the innermost place in the user's code, ``step (train.py:23)``, "" = unknown.
        consequence: it tells that a peer is gone or has failed: what happened to that one is the
            cause.
    """

    kind: str
    job_rank: int
    rank: int = -1
    text: str = ""
    fingerprint: str = ""
    where: str = ""
    consequence: bool = False


class Limits(msgspec.Struct, frozen=True):
    """Of one call; as given to `Wrapper`, in seconds."""

    soft_timeout: float = 60.0
    hard_timeout: float = 90.0
    heartbeat_timeout: float = 30.0
    barrier_timeout: float = 120.0
    completion_timeout: float = 120.0
    termination_grace_time: float = 5.0


# --- from ranks -----------------------------------------------------------------------------------


class Enter(msgspec.Struct, frozen=True, tag=True):
    """A rank calls a wrapped function. The first message of a call.

    Attributes:
        call: from 0, how many calls this process has made before.
        job_rank: its name; 0 <= job_rank < world_size.
        world_size: how many processes the job has; all must say the same.
        pid: of the process, in its guard's namespace.
        node: name of its host.
        limits: of this call.
        repeats: the call is ended when the same fault has come so often in a row, without progress
            in between; 0 = never.
        rejoin: the process takes the place of a lost one, and may join a call that is on. It does
            not know which: it says call 0 (and joins epoch 0 as rank -1), waits for a record, and
            goes on with the numbers of that one.
        version: of these messages.
    """

    call: int
    job_rank: int
    world_size: int
    pid: int
    node: str
    limits: Limits
    repeats: int = 0
    rejoin: bool = False
    version: int = VERSION


class Join(msgspec.Struct, frozen=True, tag=True):
    """It is ready for an epoch: nothing of the one before runs in it any more.

    Attributes:
        rank: its rank in the epoch before, as assigned; in epoch 0 the one it began with; -1 = it
            takes the place of a lost process.
        world_size: of the epoch before, as assigned; in epoch 0 that of the job.
        store: ``HOST:PORT`` where it would serve the epoch's store, "" = it cannot.
        info: what rank assignments want all to know of it; None = nothing. JSON-able.
        progress: grows when the rank has made progress: how often it has called ``ping``.
        phases: how long the phases of the recovery took, seconds, by name.
    """

    call: int
    job_rank: int
    epoch: int
    rank: int
    world_size: int
    store: str = ""
    info: Any = None
    progress: int = 0
    phases: dict[str, float] = {}


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The epoch cannot go on; the rank can. Also said by guards (soft timeout)."""

    call: int
    job_rank: int
    epoch: int
    reason: Reason


class Completed(msgspec.Struct, frozen=True, tag=True):
    """The function has returned in this rank, or it is a reserve and has nothing to return.

    Attributes:
        reserve: said at the beginning of the epoch; `completion_timeout` does not run from here.
    """

    call: int
    job_rank: int
    epoch: int
    reserve: bool = False


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The rank takes no part in the call any more, and says so itself.

    Attributes:
        discarded: the rank assignment of this epoch has left it out, in every rank alike: the epoch
            goes on without it. Otherwise it has failed, and the epoch is stopped.
    """

    call: int
    job_rank: int
    epoch: int
    reason: Reason
    discarded: bool = False


# --- from guards ----------------------------------------------------------------------------------


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A rank's process is gone, or as good as gone.

    Attributes:
        pid: which process; said late or again, it must not concern the one that has taken its
            place. 0 = whichever there is.
    """

    call: int
    job_rank: int
    reason: Reason
    pid: int = 0


# --- from the controller --------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, tag=True):
    """The agreed beginning of an epoch.

    Ranks in here are those of the epoch before; the rank assignment of each member, given the same
    record, turns them into those of this epoch. Whose rank is lost is found without its word: the
    terminated ranks are those below ``world_size`` that no member has.

    Attributes:
        members: job ranks of who takes part, ascending.
        world_size: how many ranks there were in the epoch before, those that come to replace lost
            ones beyond that number included.
        terminated: ranks that are gone, ascending.
        joined: by job rank, the rank that a process begins with which replaces a lost one.
        reasons: why the epoch before was stopped.
        store: where the first member that can serves this epoch's store, ``HOST:PORT``, as it has
            said in `Join`; "" = nowhere.
        info: what members have said of themselves in `Join`, by rank; empty = nothing.
    """

    call: int
    epoch: int
    members: tuple[int, ...]
    world_size: int
    terminated: tuple[int, ...] = ()
    joined: dict[int, int] = {}
    reasons: tuple[Reason, ...] = ()
    store: str = ""
    info: dict[int, Any] = {}


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The epoch is over, for these reasons so far."""

    call: int
    epoch: int
    reasons: tuple[Reason, ...]


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All members have completed the epoch: the call returns.

    Attributes:
        members: the next call does not wait for others.
    """

    call: int
    epoch: int
    members: tuple[int, ...] = ()


class End(msgspec.Struct, frozen=True, tag=True):
    """The call cannot go on in any rank.

    Attributes:
        kind: "abort" (`RestartAbort`), "barrier" (`BarrierTimeout`: ranks are missing at the
            beginning), "mismatch" (`ValueError`: ranks disagree about the job), "controller"
            (`InternalError`: it cannot be reached; said by guards).
        text: for people.
    """

    call: int
    kind: str
    text: str


class Dismissed(msgspec.Struct, frozen=True, tag=True):
    """To one rank: it counts as lost, and must not go on.

    Attributes:
        text: why, for people.
        finished: the other ranks have finished, and their processes have ended: nothing is left to
            do for this one, which was to take the place of a lost rank.
    """

    call: int
    job_rank: int
    text: str
    finished: bool = False


class Resume(msgspec.Struct, frozen=True, tag=True):
    """A guard is connected anew: what one of its ranks was told, and has said since.

    Attributes:
        enter: of the call that is on, or was last.
        record: the last it was told, None = none yet.
        stop: of that record's epoch, None = it was not stopped.
        said: what the rank has said since the record, in order.
        ended: how the last call ended that has ended for this rank, None = none has; the one of
            ``enter``, or the one before.
    """

    enter: Enter
    record: Record | None
    stop: Stop | None
    said: tuple[Said, ...]
    ended: Finished | End | None = None


Said = Join | Fault | Completed | Leave
FromRank = Enter | Said
FromGuard = FromRank | Lost | Resume
ToRank = Record | Stop | Finished | End | Dismissed
