"""The rank to blame when an epoch is stopped for a soft timeout. Pure.

The judge of the house decides, `attribution.hang`. Only a hang imports it, which takes longer than
the restart after an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.attribution.hang import RankObservation
    from undaunted.progress.timeouts import Expired

_NS = 1_000_000_000
STOPPED = ("T", "t")  # letters of processes


def expired(age_s: float, limit_s: float) -> Expired | None:
    """Return the soft timeout as a limit that was passed, None = it was not.

    Args:
        age_s: time since the last progress of the rank, in seconds.
        limit_s: the soft timeout, in seconds.
    """
    from undaunted.progress.timeouts import Expired

    if age_s < limit_s:
        return None
    since_ns, deadline_ns = 0, round(limit_s * _NS)  # no times of any machine
    return Expired("soft timeout", "", since_ns, deadline_ns, age_s, limit_s, "soft_timeout")


def no_answer(enter: m.Enter, state: str, age_s: float) -> bytes:
    """Return a guard's observation of a rank that does not answer, for `Evidence`.

    Args:
        enter: of the rank.
        state: letter of its process in /proc, "" = gone.
        age_s: time since its last progress, in seconds.
    """
    from undaunted.attribution.hang import RankObservation, Standing

    limit_s = enter.limits.soft_timeout
    stopped = state in STOPPED
    return msgspec.msgpack.encode(
        RankObservation(
            rank=enter.job_rank,
            node=enter.node,
            pid=enter.pid,
            standing=Standing.STOPPED if stopped else Standing.SILENT,
            state=state,
            heard_s=age_s,
            expired=expired(age_s, limit_s),
            late_s=max(0.0, age_s - limit_s),
            reason="it is stopped" if stopped else "it did not answer",
            deaf=not stopped,
        )
    )


def blame(evidence: Collection[m.Evidence]) -> tuple[m.Reason | None, frozenset[int]]:
    """Say who hangs: the first reason for the stop, and the job ranks that only wait.

    Args:
        evidence: of all ranks that have any. Other content is left out.

    Returns:
        None, and no ranks, where there is no evidence. No ranks where nobody is known to be the
        cause.
    """
    seen = _decode(evidence) if evidence else []
    if not seen:
        return None, frozenset()
    from undaunted.attribution.hang import judge

    verdict = judge(seen, whole_job=True)
    culprit = verdict.suspects[0].rank
    reason = m.Reason(
        m.SOFT_TIMEOUT,
        culprit,
        next((each.rank for each in evidence if each.job_rank == culprit), -1),
        verdict.line,
        f"soft timeout of {culprit}",
    )
    waiting = verdict.waiting if verdict.known else ()
    return reason, frozenset(waiting)


def _decode(evidence: Collection[m.Evidence]) -> list[RankObservation]:
    from undaunted.attribution.hang import RankObservation

    seen = []
    for each in evidence:
        try:
            one = msgspec.msgpack.decode(each.seen, type=RankObservation)
        except msgspec.MsgspecError:
            continue
        if one.rank == each.job_rank:
            seen.append(one)
    # Recordings have the ranks of torch; where ranks were assigned anew, these are others.
    if any(each.rank not in (-1, each.job_rank) for each in evidence):
        seen = [msgspec.structs.replace(each, recording=None) for each in seen]
    return seen
