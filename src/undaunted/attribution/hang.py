"""Decides which rank hangs, and which ones only wait for it. Pure; see docs/design/hangs.md.

The rank whose limit passed first is often a victim: it waits in a collective for the one to blame.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.attribution.evidence import (
    Place,
    RankEvidence,
    expired_in_words,
    place_of,
    state_in_words,
    watch_name,
)
from undaunted.base.text import name_ranks, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.progress.timeouts import Expired

_FAR_FUTURE_NS = 1 << 63
# Part of the limit by which a rank may have been heard of later than the one that raised the alarm.
_ABOUT = 0.25


class Standing(enum.IntEnum):
    """How suspect a rank is by what it does, the most suspect last."""

    WAITING = 1  # in communication: for somebody else
    ENDED = 2  # cannot take part any more
    BUSY = 3  # runs or sleeps in code outside of communication
    SILENT = 4  # gives no stack: not armed, signals blocked, or deep in the kernel
    STOPPED = 5  # by a signal or a debugger


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """Who hangs.

    Attributes:
        suspects: the ranks to blame, the first one foremost; never empty.
        waiting: ranks that wait for them.
        certain: False where the line says "most likely" or that the cause is not known.
        line: all of it in one line.
        watch, age_s, limit_s, limit_source, iteration, frame: about the foremost suspect, as in
            the journal's ``verdict`` event. The watch is the one that raised the alarm.
    """

    suspects: tuple[RankEvidence, ...]
    waiting: tuple[int, ...]
    certain: bool
    line: str
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
class _Seen:
    evidence: RankEvidence
    standing: Standing
    place: Place | None

    @property
    def spot(self) -> str:
        """What it is at, for comparing ranks; "" = not known."""
        if self.place is None:
            return ""
        return self.place.waits_in or str(self.place.frame or "")

    @property
    def deadline_ns(self) -> int:
        first = self.evidence.first_expired
        return first.deadline_ns if first else _FAR_FUTURE_NS


@dataclass(frozen=True, slots=True)
class _Finding:
    suspects: list[_Seen]
    waiting: list[_Seen]
    certain: bool
    known: bool = True


def judge(evidence: Sequence[RankEvidence], *, node: str, stacks: str = "") -> HangVerdict:
    """Decide which ranks hang.

    Args:
        evidence: of every rank of this node, at least one.
        node: name of the node, for the line.
        stacks: path of the full evidence, for the line.
    """
    seen = [_look(each) for each in evidence]
    finding = _find(seen)
    foremost = finding.suspects[0]
    alarm = foremost.evidence.first_expired or _first_alarm(seen)
    tell = _tell_known if finding.known else _tell_unknown
    ending = f"; stacks: {stacks}" if stacks else ""
    return HangVerdict(
        suspects=tuple(each.evidence for each in finding.suspects),
        waiting=tuple(sorted(each.evidence.rank for each in finding.waiting)),
        certain=finding.certain,
        line=one_line(tell(finding, seen, node), longest=900) + ending,
        watch=watch_name(alarm) if alarm else "",
        age_s=alarm.age_s if alarm else None,
        limit_s=alarm.limit_s if alarm else None,
        limit_source=alarm.source if alarm else "",
        iteration=foremost.evidence.page.iteration,
        frame=str(foremost.place.frame) if foremost.place and foremost.place.frame else "",
    )


# --- deciding -------------------------------------------------------------------------------------


def _look(evidence: RankEvidence) -> _Seen:
    place = None if evidence.ended else place_of(evidence)
    return _Seen(evidence, _standing(evidence, place), place)


def _standing(evidence: RankEvidence, place: Place | None) -> Standing:
    if evidence.ended:
        return Standing.ENDED
    if evidence.stopped:
        return Standing.STOPPED
    if place is None:
        return Standing.SILENT
    return Standing.WAITING if place.waits_in else Standing.BUSY


def _find(seen: list[_Seen]) -> _Finding:
    late = [each for each in seen if _is_late(each, seen)]
    others = [each for each in seen if each not in late]
    # A rank within its limits is doubted only if all that passed theirs wait for somebody.
    for pool, certain in ((late, True), (others, False)):
        if active := [each for each in pool if each.standing > Standing.WAITING]:
            return _most_suspect(active, seen, certain=certain)
    return _among_waiting(late or seen)


def _is_late(seen: _Seen, all_seen: list[_Seen]) -> bool:
    """Whether a rank passed a limit, or soon will: last heard of when the rank of the alarm was.

    Ranks that stop together pass their limits one after the other, the cause not always first.
    """
    if seen.evidence.ended or seen.evidence.expired:
        return not seen.evidence.ended
    alarm = _first_alarm(all_seen)
    heard_ns = seen.evidence.page.heartbeat_ns
    if alarm is None or heard_ns is None:
        return False
    return heard_ns <= alarm.since_ns + int(alarm.limit_s * 1e9 * _ABOUT)


def _most_suspect(pool: list[_Seen], seen: list[_Seen], *, certain: bool) -> _Finding:
    worst = max(each.standing for each in pool)
    suspects = [each for each in pool if each.standing == worst]
    waiting = [each for each in seen if each.standing == Standing.WAITING]
    if worst != Standing.STOPPED and len(suspects) > 1:
        crowd = _crowd(suspects, len(seen))
        apart = [each for each in suspects if each not in crowd]
        waiting += crowd if apart else []
        suspects = _lagging(apart or suspects)
        certain = False
    return _Finding(_in_order(suspects), waiting, certain)


def _among_waiting(seen: list[_Seen]) -> _Finding:
    """All wait in communication: only differences between them can tell anything."""
    lagging = _lagging(seen)
    crowd = _crowd(seen, len(seen))
    apart = lagging if len(lagging) < len(seen) else [each for each in seen if each not in crowd]
    if apart and len(apart) < len(seen):
        return _Finding(_in_order(apart), [e for e in seen if e not in apart], certain=False)
    return _Finding(_in_order(seen)[:1], [], certain=False, known=False)


def _crowd(seen: list[_Seen], of: int) -> list[_Seen]:
    """The ranks at one and the same spot, if these are more than half of ``of`` ranks.

    Most ranks of a healthy job wait at the same line for the ones that are somewhere else. Needed
    where waiting has no Python frame: ``work.wait()``, ``loss.item()``.
    """
    spots = Counter(each.spot for each in seen if each.spot)
    spot, count = max(spots.items(), key=lambda item: item[1], default=("", 0))
    return [each for each in seen if each.spot == spot] if count * 2 > of else []


def _lagging(seen: list[_Seen]) -> list[_Seen]:
    """The ranks at the lowest iteration; all, where an iteration is not known."""
    iterations = [each.evidence.page.iteration for each in seen]
    known = [iteration for iteration in iterations if iteration is not None]
    if len(known) < len(seen):
        return seen
    return [each for each in seen if each.evidence.page.iteration == min(known)]


def _in_order(seen: list[_Seen]) -> list[_Seen]:
    return sorted(seen, key=lambda each: (each.deadline_ns, each.evidence.rank))


def _first_alarm(seen: list[_Seen]) -> Expired | None:
    first = _in_order(seen)[0]
    return first.evidence.first_expired


# --- telling --------------------------------------------------------------------------------------


def _tell_known(finding: _Finding, seen: list[_Seen], node: str) -> str:
    foremost, *more = finding.suspects
    evidence = foremost.evidence
    alarm = evidence.first_expired
    state = state_in_words(evidence.state)
    what = expired_in_words(alarm) if alarm else state
    if evidence.page.iteration is not None:
        what += f" at iteration {evidence.page.iteration}"
    what = ", ".join([what, *_where(foremost), *([state] if alarm else []), *_no_stack(foremost)])
    likely = "" if finding.certain else "most likely "
    line = f"{_who(evidence, node)} {likely}{_verb(foremost)}: {what}"
    if more:
        line += f"; {_ranks(more)} just as suspect"
    if finding.waiting:
        line += f"; {_waiters(finding.waiting, 'it' if not more else 'them')}"
    if alarm is None and (first := _first_alarm(seen)) is not None:
        line += f", {expired_in_words(first)}"
    return line


def _tell_unknown(finding: _Finding, seen: list[_Seen], node: str) -> str:
    late = [each for each in seen if each.standing == Standing.WAITING]
    foremost = finding.suspects[0].evidence
    alarm = foremost.first_expired
    at = f" at iteration {foremost.page.iteration}" if foremost.page.iteration is not None else ""
    spots = " and ".join(sorted({each.spot for each in late}))
    who = _who(foremost, node) if len(late) == 1 else f"{_ranks(late)} (node {node})"
    waits = f"{who} {'hangs' if len(late) == 1 else 'hang'}: waiting in {spots}{at}"
    since = f", {expired_in_words(alarm)}" if alarm else ""
    return (
        f"{waits}{since}; no rank of this node is known to be the cause "
        "(a rank of another node, the network or a device may be)"
    )


def _who(evidence: RankEvidence, node: str) -> str:
    return f"rank {evidence.rank} (node {node}, pid {evidence.pid})"


def _verb(seen: _Seen) -> str:
    return "is missing" if seen.standing == Standing.ENDED else "hangs"


def _where(seen: _Seen) -> list[str]:
    place = seen.place
    if place is None:
        return []
    words = [f"waiting in {place.waits_in}"] if place.waits_in else []
    words += [f"in {place.frame}"] if place.frame else []
    return words + ([place.activity] if place.activity and not place.waits_in else [])


def _no_stack(seen: _Seen) -> list[str]:
    silent = seen.standing == Standing.SILENT
    return [f"no stack ({seen.evidence.reason or 'reason unknown'})"] if silent else []


def _waiters(waiting: list[_Seen], whom: str) -> str:
    spots = sorted({each.spot for each in waiting})
    verb = "rank waits" if len(waiting) == 1 else "ranks wait"
    return f"{len(waiting)} {verb} for {whom} in {' and '.join(spots)}"


def _ranks(seen: list[_Seen]) -> str:
    return name_ranks([each.evidence.rank for each in seen])
