"""The events of a run in which rank 1 crashes, later rank 0 hangs, and the job finishes.

Each round begins with iteration 7; they reach iterations 27, 47 and 107.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.journal import events as e
from undaunted.journal.checkpoints import reports_of
from undaunted.journal.goodput import Account, account
from undaunted.journal.job.summary import summarize
from undaunted.journal.launch import LaunchState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.job.values import LaunchSummary

MS = 1_000_000


def at(ms: float, of: type[e.Event], number: int = -1, /, **fields: Any) -> e.AnyEvent:
    """One event ``ms`` milliseconds after the start of the clock."""
    return of(t=round(ms * MS), wall=1000 + ms / 1000, node="n0", round=number, **fields)


def account_of(events: Sequence[e.Event], *about: Any, **more: Any) -> Account:
    """Where the time of a launch with these events went."""
    return account(LaunchState.of(events), *about, **more)


def summary_of(events: Sequence[e.Event], **about: Any) -> LaunchSummary:
    """The summary of a launch with these events."""
    return summarize(LaunchState.of(events), reports=reports_of(events), **about)


def begin(ms: float, number: int) -> list[e.AnyEvent]:
    """A round of two ranks: program begins after 10 and 12 ms, first steps after 30 and 35."""
    marks = [(0, "first_line", 10), (1, "first_line", 12), (1, "first_step", 30)]
    return [
        at(ms, e.RoundStarted, number, world_size=2, ranks=[0, 1], master_port=1),
        at(ms + 5, e.WorkersSpawned, number, mode="warm", pids=[100, 101]),
        *(
            at(ms + after + 1, e.RankMilestone, number, rank=rank, name=name,
               at_ns=round((ms + after) * MS), iteration=7 if name == "first_step" else None)
            for rank, name, after in [*marks, (0, "first_step", 35)]
        ),
    ]  # fmt: skip


def reached(ms: float, number: int, iteration: int, began_ms: float) -> e.AnyEvent:
    """The round has come as far as this iteration, which began at ``began_ms``."""
    return at(ms, e.RoundProgress, number, first_iteration=7, last_iteration=iteration,
              last_ns=round(began_ms * MS))  # fmt: skip


OPENING = [
    at(0, e.JournalOpened, boot_id="boot", pid=42),
    at(1, e.JobStarted, run_id="demo", argv=["train.py", "--fast"], nproc_per_node=2,
       max_restarts=3, log_dir="/logs"),
]  # fmt: skip
CRASH = [
    at(1000, e.FailureDetected, 0, kind="crash", rank=1, since_ns=998 * MS, detail="exit code 1"),
    at(1001, e.Decision, 0, action="restart", reason="rank 1 crashed", restarts_left=2),
    at(1002, e.StopRequested, 0, reason="rank 1 crashed", grace_s=15.0),
    at(1003, e.RankExited, 0, rank=1, pid=101, exit_code=1),
    at(1030, e.RankExited, 0, rank=0, pid=100, signal="SIGTERM", by_us=True),
    at(1040, e.Verdict, 0, kind="crash", rank=1, local_rank=1, pid=101, exit_code=1,
       line="rank 1 raised ValueError: bad batch", exception="ValueError: bad batch",
       traceback="Traceback (most recent call last):\n  ...\nValueError: bad batch\n"),
    reached(1041, 0, 27, 985),
    at(1042, e.RoundStopped, 0),
]  # fmt: skip
HANG = [
    at(5000.2, e.FailureDetected, 1, kind="hang", rank=1, since_ns=5000 * MS, detail="heartbeat"),
    at(5100, e.EvidenceCollected, 1, ranks=[0, 1], path="/run/stacks-round1.txt",
       duration_ns=99 * MS),
    at(5101, e.Verdict, 1, kind="hang", rank=0, local_rank=0, pid=102, line="rank 0 hangs",
       age_s=3.1, limit_s=3.0, watch="heartbeat", waiting=[1], frame="load (train.py:12)",
       stacks="/run/stacks-round1.txt"),
    at(5102, e.Decision, 1, action="restart", reason="rank 0 hangs", restarts_left=1),
    at(5103, e.StopRequested, 1, reason="rank 0 hangs", grace_s=1.0),
    reached(5109, 1, 47, 1998),
    at(5110, e.RoundStopped, 1),
]  # fmt: skip
ENDING = [
    at(9000, e.RankExited, 2, rank=0, pid=104, exit_code=0),
    at(9001, e.RankExited, 2, rank=1, pid=105, exit_code=0),
    at(9002, e.Decision, 2, action="end", reason="every rank exited with 0", restarts_left=1),
    at(9002, e.StopRequested, 2, reason="the work is done", grace_s=15.0),
    reached(9002.5, 2, 107, 8147),
    at(9003, e.RoundStopped, 2),
    at(9004, e.JobEnded, 2, outcome="finished", exit_code=0, reason="every rank exited with 0"),
]  # fmt: skip
RUN: list[e.AnyEvent] = [
    *OPENING,
    *begin(10, 0),
    *CRASH,
    *begin(1043, 1),
    *HANG,
    *begin(5112, 2),
    *ENDING,
]
