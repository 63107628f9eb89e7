"""Decides which rank hangs, and which ones only wait for it. Pure; see docs/design/hangs.md.

The rank whose limit passed first is often a victim: it waits in a collective for the one to blame.
What was seen of the ranks of one node, or of all nodes of a job, is judged in the same way.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.evidence import (
    LEAVING,
    RankEvidence,
    StackPosition,
    expired_in_words,
    place_of,
    state_in_words,
    watch_name,
)
from undaunted.attribution.findings import SURE, UNEQUAL, UNREAD
from undaunted.attribution.flight.culprits import analyse
from undaunted.attribution.flight.recording import NotADumpError, Recording, decode
from undaunted.base.text import name_ranks, one_line
from undaunted.progress.snapshot import Phase
from undaunted.progress.timeouts import Expired  # noqa: TC001 - decoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NS = 1_000_000_000
RECORDED = "; recorded: "
"""In the line of a verdict: what follows is from recordings of the Flight Recorder."""
_FEW_NODES = 4  # are named
_SURE = 0.9  # confidence
_LAGS = "host_lag"  # in `findings.CAUSES`
# Part of the limit by which a rank may have been heard of later than the one that raised the alarm.
_ABOUT = 0.25


class Standing(enum.IntEnum):
    """The degrees of suspicion of a rank by what it does, the most suspect last."""

    WAITING = 1  # in communication: for somebody else
    ENDED = 2  # cannot take part any more
    BUSY = 3  # runs or sleeps in code outside of communication
    SILENT = 4  # gives no stack: not armed, signals blocked, or deep in the kernel
    STOPPED = 5  # by a signal or a debugger


class RankObservation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts about one rank that its node has seen, in a form that goes to other nodes.

    Times are ages, as the clocks of nodes differ.

    Attributes:
        rank, node, pid: who it is.
        standing: how suspect it is by what it does.
        state: letter of its process in /proc, "" = gone.
        frame: innermost frame of the user's code, "" = not known.
        waits_in: the communication it waits in, or "".
        activity: what else it does inside a library, where that says something, or "".
        iteration: the last one it began.
        heard_s: time since its last heartbeat, in seconds; None = it never sent one.
        expired: the limit that it has passed first; its times are no times of this machine.
        late_s: for how long it has been over that limit, in seconds.
        reason: why there is no stack, as the rest of a sentence.
        deaf: no thread of its interpreter has answered.
        recording: what its Flight Recorder holds.
        prints: see `RankEvidence`.
        exit_code: of a process that has ended, None = it has not.
        nccl: how it keeps others waiting, as NCCL says (`nccl_ras`); "" = it does not.
    """

    rank: int
    node: str
    pid: int
    standing: Standing
    state: str = ""
    frame: str = ""
    waits_in: str = ""
    activity: str = ""
    iteration: int | None = None
    heard_s: float | None = None
    expired: Expired | None = None
    late_s: float = 0.0
    reason: str = ""
    deaf: bool = False
    recording: Recording | None = None
    prints: str = ""
    exit_code: int | None = None
    nccl: str = ""

    @property
    def spot(self) -> str:
        """Return what it is at, for comparing ranks; "" = not known."""
        return self.waits_in or self.frame


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The rank that hangs.

    Attributes:
        suspects: the ranks to blame, the first one foremost; never empty.
        waiting: ranks that wait for them.
        certain: False where the line says "most likely" or that the cause is not known.
        known: False where the line says that the cause is not known.
        cause: its name in `findings.CAUSES`; "" = not known.
        line: all of it in one line.
        watch, age_s, limit_s, limit_source, iteration, frame: about the foremost suspect, as in
            the journal's ``verdict`` event. The watch is the one that raised the alarm.
    """

    suspects: tuple[RankObservation, ...]
    waiting: tuple[int, ...]
    certain: bool
    known: bool
    line: str
    cause: str = ""
    watch: str = ""
    age_s: float | None = None
    limit_s: float | None = None
    limit_source: str = ""
    iteration: int | None = None
    frame: str = ""

    @property
    def culprits(self) -> tuple[int, ...]:
        """Global ranks of the suspects."""
        return tuple(each.rank for each in self.suspects)


@dataclass(frozen=True, slots=True)
class _Finding:
    suspects: list[RankObservation]
    waiting: list[RankObservation]
    certain: bool
    known: bool = True
    cause: str = ""
    recorded: str = ""  # what recordings say


def look(evidence: RankEvidence, *, node: str, now_ns: int) -> RankObservation:
    """Say what a rank does.

    Args:
        evidence: of it.
        node: its node.
        now_ns: when the evidence was taken, by the clock of its node.
    """
    place = None if evidence.ended else place_of(evidence)
    first, heard_ns = evidence.first_expired, evidence.page.heartbeat_ns
    return RankObservation(
        rank=evidence.rank,
        node=node,
        pid=evidence.pid,
        standing=_standing(evidence, known=place is not None, waits=bool(place and place.waits_in)),
        state=evidence.state,
        frame=str(place.frame) if place and place.frame else "",
        waits_in=place.waits_in if place else "",
        activity=_activity(evidence, place),
        iteration=evidence.page.iteration,
        heard_s=None if heard_ns is None else (now_ns - heard_ns) / _NS,
        expired=first,
        late_s=(now_ns - first.deadline_ns) / _NS if first else 0.0,
        reason=evidence.reason,
        prints=evidence.prints,
        exit_code=evidence.exit_code,
    )


def _activity(evidence: RankEvidence, place: StackPosition | None) -> str:
    activity = place.activity if place else ""
    said = any(each.watch == "leaving" for each in evidence.expired)
    return activity or ("" if said or evidence.page.phase is not Phase.LEAVING else LEAVING)


def with_recording(seen: RankObservation, recorded: Mapping[int, bytes | None]) -> RankObservation:
    """Add what a rank has answered when it was asked for its recording, by pid; None = nothing."""
    data = recorded.get(seen.pid, b"")
    if data is None:
        return msgspec.structs.replace(seen, deaf=True)
    try:
        recording = decode(data) if data else None
    except NotADumpError:
        return seen
    return msgspec.structs.replace(seen, recording=recording)


def judge(
    seen: Sequence[RankObservation], *, whole_job: bool = False, stacks: str = ""
) -> HangVerdict:
    """Decide which ranks hang.

    Args:
        seen: of every rank of one node or of all nodes, at least one.
        whole_job: these are all ranks there are, as far as they could be looked at.
        stacks: path of the full evidence, for the line.
    """
    seen = list(seen)
    finding = _find(seen)
    if whole_job:  # else ranks that are missing are on other nodes
        finding = _with_recordings(finding, seen)
    finding = _with_nccl(finding, seen)
    if any(each.prints for each in finding.suspects):
        printing = _in_order([each for each in seen if each.prints])
        finding = replace(finding, suspects=printing, certain=False, known=False, cause=UNREAD)
    left = [each for each in seen if each.exit_code == 0]
    if left and not finding.suspects[0].prints and _wait_for_left(finding, seen):
        waiting = [each for each in seen if each.standing != Standing.ENDED]
        finding = _Finding(_in_order(left), waiting, certain=True, cause=UNEQUAL)
    foremost = finding.suspects[0]
    alarm = foremost.expired or _first_alarm(seen).expired
    if foremost.prints:
        line = _tell_printing(finding.suspects, alarm)
    elif finding.cause == UNEQUAL:
        line = _tell_unequal(finding, seen)
    elif finding.known:
        line = _tell_known(finding, seen) + _tell_left(left)
    else:
        line = _tell_unknown(finding, seen, whole_job) + _tell_left(left)
    ending = f"; stacks: {stacks}" if stacks else ""
    return HangVerdict(
        suspects=tuple(finding.suspects),
        waiting=tuple(sorted(each.rank for each in finding.waiting)),
        certain=finding.certain,
        known=finding.known,
        cause=finding.cause,
        line=one_line(line, longest=900) + ending,
        watch=watch_name(alarm) if alarm else "",
        age_s=alarm.age_s if alarm else None,
        limit_s=alarm.limit_s if alarm else None,
        limit_source=alarm.source if alarm else "",
        iteration=foremost.iteration,
        frame=foremost.frame,
    )


# --- deciding -------------------------------------------------------------------------------------


def _standing(evidence: RankEvidence, *, known: bool, waits: bool) -> Standing:
    if evidence.ended:
        return Standing.ENDED
    if evidence.stopped:
        return Standing.STOPPED
    if not known:
        return Standing.SILENT
    return Standing.WAITING if waits else Standing.BUSY


def _find(seen: list[RankObservation]) -> _Finding:
    first = _first_alarm(seen)
    late = [each for each in seen if _is_late(each, first)]
    # A rank within its limits is doubted only if all that passed theirs wait for somebody.
    for pool, certain in ((late, True), (_without(seen, late), False)):
        if active := [each for each in pool if each.standing > Standing.WAITING]:
            return _most_suspect(active, seen, certain=certain)
    return _among_waiting(late or seen)


def _with_recordings(finding: _Finding, seen: list[RankObservation]) -> _Finding:
    """Compare with what recordings say, which know more than stacks where all ranks wait."""
    recordings = [each.recording for each in seen if each.recording is not None]
    if not recordings:
        return finding
    # A rank that is seen to wait had no time to answer: that it has no recording says nothing.
    waits = {each.rank for each in seen if each.standing == Standing.WAITING}
    culprits = analyse(recordings).culprits
    blamed = [
        one
        for one in culprits
        if one.confidence >= SURE and (one.cause != "no_dump" or one.rank not in waits)
    ]
    of_rank = {one.rank: one for one in reversed(blamed)}
    agreed = [each for each in finding.suspects if each.rank in of_rank]
    if finding.known and agreed:
        one = of_rank[agreed[0].rank]
        certain = finding.certain or one.confidence > _SURE
        found = replace(finding, cause=one.cause, recorded=one.evidence)
        return replace(found, suspects=agreed, certain=certain)
    if finding.certain or not blamed:
        return finding
    suspects = [each for each in seen if each.rank in of_rank]
    suspects.sort(key=lambda each: (-of_rank[each.rank].confidence, each.rank))
    if not suspects:
        return finding
    one = of_rank[suspects[0].rank]
    waiting = [each for each in seen if each.standing == Standing.WAITING]
    return _Finding(
        suspects,
        _without(waiting, suspects),
        certain=one.confidence > _SURE,
        cause=one.cause,
        recorded=one.evidence,
    )


def _with_nccl(finding: _Finding, seen: list[RankObservation]) -> _Finding:
    """Compare with what NCCL says of the whole job, which needs neither stacks nor recordings."""
    told = [each for each in seen if each.nccl]
    agreed = [each for each in finding.suspects if each.nccl]
    if finding.known and agreed:
        return replace(finding, suspects=agreed, cause=finding.cause or _LAGS)
    if finding.certain or finding.recorded or not told:
        return finding
    waiting = [each for each in seen if each.standing == Standing.WAITING]
    return _Finding(_in_order(told), _without(waiting, told), certain=False, cause=_LAGS)


def _wait_for_left(finding: _Finding, seen: list[RankObservation]) -> bool:
    """Whether all ranks that run wait for those that have ended with 0.

    They wait in communication, or several at one and the same spot: one alone may as well hang
    where it is after the end of the training.
    """
    run = [each for each in seen if each.standing != Standing.ENDED]
    if finding.certain and finding.recorded:
        return False
    if any(each.standing == Standing.STOPPED for each in run):
        return False
    wait = all(each.standing == Standing.WAITING for each in run)
    together = len(run) > 1 and len(_crowd(run, len(run))) == len(run)
    return bool(run) and (wait or together)


def _is_late(seen: RankObservation, first: RankObservation) -> bool:
    """Whether a rank passed a limit, or soon will: last heard of when the rank of the alarm was.

    Ranks that stop together pass their limits one after the other, the cause not always first.
    """
    if seen.standing == Standing.ENDED or seen.expired:
        return seen.standing != Standing.ENDED
    if first.expired is None or seen.heard_s is None:
        return False
    return seen.heard_s >= first.expired.age_s - first.expired.limit_s * _ABOUT


def _most_suspect(
    pool: list[RankObservation], seen: list[RankObservation], *, certain: bool
) -> _Finding:
    worst = max(each.standing for each in pool)
    suspects = [each for each in pool if each.standing == worst]
    waiting = [each for each in seen if each.standing == Standing.WAITING]
    if worst != Standing.STOPPED and len(suspects) > 1:
        crowd = _crowd(suspects, len(seen))
        apart = _without(suspects, crowd)
        waiting += crowd if apart else []
        suspects = _lagging(apart or suspects)
        certain = False
    return _Finding(_in_order(suspects), waiting, certain)


def _among_waiting(seen: list[RankObservation]) -> _Finding:
    """All wait in communication: only differences between them can tell anything."""
    lagging = _lagging(seen)
    crowd = _crowd(seen, len(seen))
    apart = lagging if len(lagging) < len(seen) else _without(seen, crowd)
    if apart and len(apart) < len(seen):
        return _Finding(_in_order(apart), _without(seen, apart), certain=False)
    return _Finding(_in_order(seen)[:1], [], certain=False, known=False)


def _crowd(seen: list[RankObservation], of: int) -> list[RankObservation]:
    """The ranks at one and the same spot, if these are more than half of ``of`` ranks.

    Most ranks of a healthy job wait at the same line for the ones that are somewhere else. Needed
    where waiting has no Python frame: ``work.wait()``, ``loss.item()``.
    """
    spots = Counter(each.spot for each in seen if each.spot)
    spot, count = max(spots.items(), key=lambda item: item[1], default=("", 0))
    return [each for each in seen if each.spot == spot] if count * 2 > of else []


def _lagging(seen: list[RankObservation]) -> list[RankObservation]:
    """The ranks at the lowest iteration; all, where an iteration is not known."""
    iterations = [each.iteration for each in seen]
    known = [iteration for iteration in iterations if iteration is not None]
    if len(known) < len(seen):
        return seen
    lowest = min(known)
    return [each for each in seen if each.iteration == lowest]


def _without(seen: list[RankObservation], others: list[RankObservation]) -> list[RankObservation]:
    gone = {each.rank for each in others}
    return [each for each in seen if each.rank not in gone]


def _in_order(seen: list[RankObservation]) -> list[RankObservation]:
    return sorted(seen, key=_order)


def _first_alarm(seen: list[RankObservation]) -> RankObservation:
    return min(seen, key=_order)


def _order(seen: RankObservation) -> tuple[bool, float, int]:
    return seen.expired is None, -seen.late_s, seen.rank


# --- telling --------------------------------------------------------------------------------------


def _tell_known(finding: _Finding, seen: list[RankObservation]) -> str:
    foremost, *more = finding.suspects
    alarm = foremost.expired
    state = state_in_words(foremost.state)
    what = expired_in_words(alarm) if alarm else state
    if foremost.iteration is not None:
        what += f" at iteration {foremost.iteration}"
    what = ", ".join([what, *_where(foremost), *([state] if alarm else []), *_no_stack(foremost)])
    likely = "" if finding.certain else "most likely "
    line = f"{_who(foremost)} {likely}{_verb(foremost)}: {what}"
    if more:
        line += f"; {_ranks(more)} just as suspect"
    if finding.waiting:
        line += f"; {_waiters(finding.waiting, 'them' if more else 'it', foremost.node)}"
    if foremost.nccl:
        line += f"; NCCL: {foremost.nccl}"
    if finding.recorded:
        line += RECORDED + finding.recorded
    if alarm is None and (first := _first_alarm(seen).expired) is not None:
        line += f", {expired_in_words(first)}"
    return line


def _tell_unequal(finding: _Finding, seen: list[RankObservation]) -> str:
    """Tell of ranks that have ended with 0, whom all others wait for."""
    spots = sorted({each.spot for each in finding.waiting if each.spot})
    where = f" in {' and '.join(spots)}" if spots else ""
    whom = "them" if len(finding.suspects) > 1 else "it"
    wait = "waits" if len(finding.waiting) == 1 else "wait"
    line = f"{_left(finding.suspects)}; {_ranks(finding.waiting)} {wait} for {whom}{where}"
    alarm = _first_alarm(seen).expired
    return line + (f", {expired_in_words(alarm)}" if alarm else "")


def _tell_left(left: list[RankObservation]) -> str:
    return f"; {_left(left)} before" if left else ""


def _left(left: list[RankObservation]) -> str:
    who = _who(left[0]) if len(left) == 1 and left[0].pid else _ranks(left)
    iterations = sorted({each.iteration for each in left if each.iteration is not None})
    at = f" at iteration {', '.join(map(str, iterations[:_FEW_NODES]))}" if iterations else ""
    return f"{who} ended with 0{at}"


def _tell_unknown(finding: _Finding, seen: list[RankObservation], whole_job: bool) -> str:
    late = [each for each in seen if each.standing == Standing.WAITING]
    foremost = finding.suspects[0]
    alarm = foremost.expired
    at = f" at iteration {foremost.iteration}" if foremost.iteration is not None else ""
    spots = " and ".join(sorted({each.spot for each in late}))
    where = "" if whole_job else f" (node {foremost.node})"
    who = _who(foremost) if len(late) == 1 else f"{_ranks(late)}{where}"
    waits = f"{who} {'hangs' if len(late) == 1 else 'hang'}: waiting in {spots}{at}"
    since = f", {expired_in_words(alarm)}" if alarm else ""
    if whole_job:
        return f"{waits}{since}; no rank is known to be the cause (the network or a device may be)"
    return (
        f"{waits}{since}; no rank of this node is known to be the cause "
        "(a rank of another node, the network or a device may be)"
    )


def _tell_printing(ranks: list[RankObservation], alarm: Expired | None) -> str:
    """These ranks wait until somebody empties the launcher's pipe: none of them is to blame."""
    foremost = ranks[0]
    who = _who(foremost) if len(ranks) == 1 else f"{_ranks(ranks)} (node {foremost.node})"
    waits = "waits" if len(ranks) == 1 else "wait"
    at = f" at iteration {foremost.iteration}" if foremost.iteration is not None else ""
    since = f", {expired_in_words(alarm)}" if alarm else ""
    where = f", in {foremost.frame}" if foremost.frame else ""
    return (
        f"{who} {waits} to print{at}: nobody reads {foremost.prints} of the launcher{where}{since}"
        "; no rank is to blame. Read it, or give -r 3 or -t 3: then ranks write to files"
    )


def _who(seen: RankObservation) -> str:
    return f"rank {seen.rank} (node {seen.node}, pid {seen.pid})"


def _verb(seen: RankObservation) -> str:
    return "is missing" if seen.standing == Standing.ENDED else "hangs"


def _where(seen: RankObservation) -> list[str]:
    words = [f"waiting in {seen.waits_in}"] if seen.waits_in else []
    words += [f"in {seen.frame}"] if seen.frame else []
    return words + ([seen.activity] if seen.activity and not seen.waits_in else [])


def _no_stack(seen: RankObservation) -> list[str]:
    silent = seen.standing == Standing.SILENT
    deaf = seen.deaf and seen.standing == Standing.BUSY
    words = ["its interpreter does not answer"] if deaf else []
    return [f"no stack ({seen.reason or 'reason unknown'})"] if silent else words


def _waiters(waiting: list[RankObservation], whom: str, node: str) -> str:
    spots = sorted({each.spot for each in waiting})
    ranks, wait = ("rank", "waits") if len(waiting) == 1 else ("ranks", "wait")
    where = _elsewhere(waiting, node)
    return f"{len(waiting)} {ranks}{where} {wait} for {whom} in {' and '.join(spots)}"


def _elsewhere(seen: list[RankObservation], node: str) -> str:
    """Name the nodes of these ranks, unless all are on ``node``."""
    nodes = sorted({each.node for each in seen})
    if nodes == [node]:
        return ""
    if len(nodes) > _FEW_NODES:
        return f" on {len(nodes)} nodes"
    return f" on node{'s' if len(nodes) > 1 else ''} {' and '.join(nodes)}"


def _ranks(seen: list[RankObservation]) -> str:
    return name_ranks([each.rank for each in seen])
