"""Stacks of real two-rank gloo jobs, and small builders of evidence."""

from __future__ import annotations

from pathlib import Path

from undaunted.attribution.evidence import RankEvidence
from undaunted.progress.snapshot import PageSnapshot
from undaunted.progress.timeouts import Expired

_STACKS = Path(__file__).parent / "stacks"
SECOND = 1_000_000_000


def sample(name: str) -> str:
    """Text of one sample file."""
    return (_STACKS / f"{name}.txt").read_text()


def stack(*frames: str) -> str:
    """A dump of one thread; frames as ``file:line:function``, innermost first."""
    lines = []
    for frame in frames:
        file, line, function = frame.split(":")
        lines.append(f'  File "{file}", line {line} in {function}')
    return "\n".join(["Current thread 0x00007fa1 (most recent call first):", *lines, ""])


IN_ALL_REDUCE = sample("allreduce-rank0")
IN_LOAD_BATCH = sample("allreduce-rank1")


def late(
    age_s: float = 12.0, limit_s: float = 10.0, watch: str = "heartbeat", at_s: float = 100.0
) -> tuple[Expired, ...]:
    """A limit passed at ``at_s``."""
    deadline = int(at_s * SECOND)
    since = deadline - int(limit_s * SECOND)
    source = "--ft-rank-heartbeat-timeout" if watch == "heartbeat" else "configured"
    name = "eval" if watch == "section" else ""
    return (Expired(watch, name, since, deadline, age_s, limit_s, source),)  # type: ignore[arg-type]


def rank(
    number: int,
    stacks: str | None = IN_ALL_REDUCE,
    *,
    state: str = "S",
    iteration: int | None = 118,
    expired: tuple[Expired, ...] = (),
    reason: str = "",
    heartbeat_s: float | None = 99.5,
) -> RankEvidence:
    """What was seen of one rank."""
    beat = None if heartbeat_s is None else int(heartbeat_s * SECOND)
    page = PageSnapshot(pid=4700 + number, iteration=iteration, heartbeat_ns=beat)
    return RankEvidence(
        rank=number, local_rank=number % 4, pid=4700 + number, page=page, expired=expired,
        state=state, stacks=stacks, reason=reason,
    )  # fmt: skip
