"""The messages between ranks, guards and the controller of in-process restart.

A rank talks to its guard, a guard to the controller, with the same messages. They carry the number
of the call, and the job rank: ``RANK`` as the launcher has set it, which names a process for its
whole life. MessagePack on the wire. Times are durations in seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

# A record for many ranks, with what their rank assignment wants to know, must fit.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
VERSION = 3
SOFT_TIMEOUT = "SOFT_TIMEOUT"  # kind of a `Reason`


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason for the end of an epoch, or for the loss of a rank.

    Attributes:
        kind: name of an `undaunted.inprocess.attribution.Interruption`.
        job_rank: the rank that has failed.
        rank: its rank in that epoch, -1 = none yet.
        text: for people; at most 1000 characters.
        fingerprint: equal for two failures that are probably the same, "" = unknown.
        where: the innermost place in the user's code, ``step (train.py:23)``, "" = unknown.
        consequence: the rank has failed because a peer is gone or has failed: the cause is there.
    """

    kind: str
    job_rank: int
    rank: int = -1
    text: str = ""
    fingerprint: str = ""
    where: str = ""
    consequence: bool = False

    @property
    def named(self) -> bool:
        """Return whether the text says itself which ranks it is about."""
        return self.text.startswith((f"rank {self.job_rank} ", "ranks "))


# Guards and controller notice an end later than it comes, by this.
_SLACK_S = 1.0
_MARGIN_S = 10.0


class Limits(msgspec.Struct, frozen=True):
    """The limits of one call, as given to `Wrapper`, in seconds."""

    soft_timeout: float = 60.0
    hard_timeout: float = 90.0
    heartbeat_timeout: float = 30.0
    barrier_timeout: float = 120.0
    completion_timeout: float = 120.0
    termination_grace_time: float = 5.0

    @property
    def silence_s(self) -> float:
        """Seconds without an answer after which a guard gives up its link.

        It then looks for the controller for another `heartbeat_timeout`, and only then dismisses
        its rank.
        """
        return self.heartbeat_timeout / 3

    def unreachable_s(self, notices_s: float | None = None) -> float:
        """Return after how many seconds of silence the controller gives up a guard.

        By then the function runs in no rank of a living guard that cannot reach the controller:
        the guard ends one that stays in it after it was dismissed. SIGTERM comes after
        `termination_grace_time`, SIGKILL after as much again.

        Args:
            notices_s: within this time the guard gives up its link; None = `silence_s`.
        """
        if notices_s is None:
            notices_s = self.silence_s + _SLACK_S
        return notices_s + self.heartbeat_timeout + 2 * self.termination_grace_time

    def longest_wait_s(self, limit_s: float) -> float:
        """Return how long a rank waits for what the controller ends after a limit, seconds.

        A controller may take over in between: a guard looks for it for `heartbeat_timeout`, and
        ends the wait itself then; it waits for the other guards. After the limit, guards may have
        to end late ranks, by SIGTERM and then SIGKILL. So only a guard that stands still lets this
        time pass.
        """
        end_s = 2 * self.termination_grace_time + _MARGIN_S
        return limit_s + self.heartbeat_timeout + self.unreachable_s() + end_s


# --- from ranks -----------------------------------------------------------------------------------


class Enter(msgspec.Struct, frozen=True, tag=True):
    """A rank calls a wrapped function. The first message of a call.

    Attributes:
        call: how many calls this process has made before.
        job_rank: 0 <= job_rank < world_size.
        world_size: number of processes of the job; the same in all ranks.
        pid: of the process, in its guard's namespace.
        node: name of its host.
        limits: of this call.
        repeats: the call is ended when the same fault has come this often in a row, without
            progress in between, and before that there are pauses; 0 = neither.
        rejoin: the process takes the place of a lost one, and may join a call that has begun. It
            does not know the call's number: it says call 0, and joins epoch 0 as rank -1; the
            record that it hears then has the right numbers.
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
    """The rank is ready for an epoch: nothing of the epoch before runs in it any more.

    Attributes:
        rank: as assigned in the epoch before; in epoch 0 the rank it began with; -1 = the process
            takes the place of a lost one.
        world_size: as assigned in the epoch before; in epoch 0 that of the job.
        store: ``HOST:PORT`` where it would serve the epoch's store, "" = it cannot.
        info: `RankAssignment.info` of the rank, for all ranks; JSON can hold it; None = nothing.
        progress: grows with each ``ping``, and with the highest ``undaunted.step``.
        phases: durations of the phases of its recovery, seconds, by name.
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
    """The epoch cannot go on, but the rank can. Guards say it too (soft timeout)."""

    call: int
    job_rank: int
    epoch: int
    reason: Reason


class Completed(msgspec.Struct, frozen=True, tag=True):
    """The function has returned in this rank, or the rank is a reserve that does not call it.

    Attributes:
        reserve: the rank is a reserve, and says it at the beginning of the epoch;
            `completion_timeout` does not run from here.
    """

    call: int
    job_rank: int
    epoch: int
    reserve: bool = False


class Evidence(msgspec.Struct, frozen=True, tag=True):
    """The rank's work when its epoch was stopped for a soft timeout; see `core.hang`.

    Guards say it in place of a rank that does not answer.

    Attributes:
        rank: as assigned in that epoch, -1 = not known.
        seen: an `attribution.hang.RankObservation` in MessagePack; empty = the rank is a reserve.
    """

    call: int
    job_rank: int
    epoch: int
    rank: int
    seen: bytes


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The rank takes no part in the call any more, by its own decision.

    Attributes:
        discarded: the rank assignment of this epoch has left it out, with the same result in every
            rank: the epoch goes on without it. False = it has failed, and the epoch is stopped.
    """

    call: int
    job_rank: int
    epoch: int
    reason: Reason
    discarded: bool = False


# --- from guards ----------------------------------------------------------------------------------


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A rank's process has ended, or cannot be ended and counts as ended.

    Attributes:
        pid: of the process: a late or repeated message must not concern the process that has taken
            its place. 0 = the rank's present process.
    """

    call: int
    job_rank: int
    reason: Reason
    pid: int = 0


# --- from the controller --------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, tag=True):
    """The agreed beginning of an epoch.

    Ranks in a record are ranks of the epoch before; the rank assignment of each member, given the
    same record, turns them into ranks of this epoch. A lost rank need not report itself:
    terminated = the ranks below ``world_size`` that no member has.

    Attributes:
        members: job ranks of the ranks that take part, ascending.
        world_size: number of ranks in the epoch before, and of processes that join beyond it.
        terminated: ranks that are gone, ascending.
        joined: first ranks of processes that replace lost ones, by job rank.
        reasons: why the epoch before was stopped.
        store: ``HOST:PORT`` of this epoch's store, which the first member serves that can (see
            `Join`); "" = there is none.
        info: of the members, from `Join`, by rank; empty = there is none.
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
    """The epoch is over, for these reasons; later ones are in the next record."""

    call: int
    epoch: int
    reasons: tuple[Reason, ...]

    @property
    def hang(self) -> bool:
        """Return whether a rank has made no progress: then all say what they were doing."""
        return any(reason.kind == SOFT_TIMEOUT for reason in self.reasons)


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All members have completed the epoch: the call returns.

    Attributes:
        members: of the epoch; the next call waits for these ranks only.
    """

    call: int
    epoch: int
    members: tuple[int, ...] = ()


class End(msgspec.Struct, frozen=True, tag=True):
    """The call cannot go on in any rank.

    Attributes:
        kind: "abort" (`RestartAbort`), "barrier" (`BarrierTimeout`: ranks are missing at the
            beginning), "mismatch" (`ValueError`: ranks disagree about the job).
        text: for people.
    """

    call: int
    kind: str
    text: str


class Dismissed(msgspec.Struct, frozen=True, tag=True):
    """To one rank: it counts as lost, and must not go on. Guards say it too (no controller).

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
    """A guard has connected again, and says what one of its ranks has heard and said.

    Attributes:
        enter: of the present call, or of the last one.
        record: the last record that the rank has heard, None = none yet.
        stop: of that record's epoch, None = it was not stopped.
        said: the rank's messages since that record, in order.
        ended: the last outcome of a call that the rank has heard, None = none; of the call of
            ``enter``, or of the call before.
        waited_s: how long ago the rank said the last of ``said``, seconds.
    """

    enter: Enter
    record: Record | None
    stop: Stop | None
    said: tuple[Said, ...]
    ended: Finished | End | None = None
    waited_s: float = 0.0


Said = Join | Fault | Completed | Evidence | Leave
FromRank = Enter | Said
FromGuard = FromRank | Lost | Resume
ToRank = Record | Stop | Finished | End | Dismissed
