"""provisional"""

from __future__ import annotations

import time
from dataclasses import dataclass

from undaunted.fault_tolerance.core.node import describe_exit
from undaunted.journal.events import Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    event: Verdict
    culprits: tuple[int, ...]


def judge_crash(config, current, workers, pages):
    bad = [w for w in workers if w.code and not w.told_by_us] or list(workers)
    w = min(bad, key=lambda w: w.exited_ns)
    rank = current.rank(w.local_rank)
    error = pages[w.local_rank].error
    what = f"{error.type}: {error.message}" if error else describe_exit(w.code or 0)
    line = f"rank {rank} (node {config.node}, pid {w.pid}) crashed: {what}"
    return Judgement(
        Verdict(
            t=time.monotonic_ns(),
            round=current.number,
            kind="crash",
            rank=rank,
            local_rank=w.local_rank,
            pid=w.pid,
            line=line,
            traceback=error.traceback if error else "",
        ),
        (w.local_rank,),
    )


def judge_hang(config, current, seen, expired):
    i = next(i for i, e in enumerate(expired) if e)
    rank = current.rank(i)
    e = expired[i][0]
    line = f"rank {rank} (node {config.node}, pid {seen[i].pid}) hangs: no {e.watch} for {e.age_s:.1f} s (limit {e.limit_s:g} s, {e.source})"
    return Judgement(
        Verdict(
            t=time.monotonic_ns(),
            round=current.number,
            kind="hang",
            rank=rank,
            local_rank=i,
            pid=seen[i].pid,
            line=line,
            limit_s=e.limit_s,
            iteration=seen[i].page.iteration,
        ),
        (i,),
    )
