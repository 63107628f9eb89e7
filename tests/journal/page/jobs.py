"""Jobs to make pages of: the run of `sample`, and one on two nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.journal.sample import MS, RUN
from undaunted.journal import events as e
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.reader import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobSummary

# Text as a hostile program may print it.
HOSTILE = "</script><img src=x onerror=alert(1)>&amp;{{data}}\u2028\u2029\x1b[31m\x00\u202e\ud800"


def journal(events: Sequence[e.AnyEvent] = RUN, node: str = "n0") -> Journal:
    return Journal(Path(f"journal-{node}.jsonl"), events=list(events))


def job(*journals: Journal) -> tuple[JobSummary, list[Launch]]:
    return whole(*journals)[:2]


def whole(*journals: Journal) -> tuple[JobSummary, list[Launch], list[Journal]]:
    """What a page is made of."""
    found = list(journals) or [journal()]
    launches = launches_of(found)
    return summarize_job(launches), launches, found


def on(node: str, shift_ms: float, ranks: dict[int, int], boot: str) -> Journal:
    """The same run on another node: later, by another clock and with other ranks."""
    return journal([_moved(one, node, round(shift_ms * MS), ranks, boot) for one in RUN], node)


def _moved(
    event: e.AnyEvent, node: str, shift_ns: int, ranks: dict[int, int], boot: str
) -> e.AnyEvent:
    changes: dict[str, Any] = {"node": node, "t": event.t + shift_ns}
    for name in ("at_ns", "since_ns", "last_ns"):
        if (value := getattr(event, name, None)) is not None:
            changes[name] = value + shift_ns
    if hasattr(event, "rank"):
        changes["rank"] = ranks.get(event.rank, event.rank)
    if isinstance(event, e.RoundStarted):
        changes |= {"ranks": [ranks[rank] for rank in event.ranks], "world_size": 4}
    if isinstance(event, e.JournalOpened):
        changes["boot_id"] = boot
    return msgspec.structs.replace(event, **changes)


def two(shift_ms: float = 5000) -> tuple[Journal, Journal]:
    """Two nodes of two ranks in the same rounds; the clock of the second is ahead."""
    return on("n0", 0, {0: 0, 1: 1}, "boot"), on("n1", shift_ms, {0: 2, 1: 3}, "other")


def hostile() -> tuple[JobSummary, list[Launch], list[Journal]]:
    """The run, with all that a program can say replaced."""
    events: list[e.AnyEvent] = []
    for event in RUN:
        match event:
            case e.Verdict():
                events.append(msgspec.structs.replace(event, line=HOSTILE, traceback=HOSTILE))
            case e.JobStarted():
                argv = [HOSTILE, "--fast"]
                events.append(msgspec.structs.replace(event, run_id=HOSTILE, argv=argv))
            case e.JobEnded():
                events.append(msgspec.structs.replace(event, reason=HOSTILE))
            case _:
                events.append(event)
    events = [msgspec.structs.replace(one, node=f"node {HOSTILE}") for one in events]
    return whole(journal(events))
