"""From what one launcher knows to families of metrics. Pure functions.

The same families come from a running launcher and from its journal; what only pages tell, such as
the age of a heartbeat, a journal does not have.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from undaunted.journal import events as e
from undaunted.journal.events import Event
from undaunted.journal.metrics.family import Family
from undaunted.journal.query import Group, every, first
from undaunted.journal.restarts import summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.metrics.now import Now, RankNow
    from undaunted.journal.metrics.tally import Tally
    from undaunted.journal.restarts import RoundSummary, RunSummary

_NS = 1_000_000_000
_KINDS = ("crash", "hang", "spawn")


def families(
    tally: Tally, node: str, now: Now | None = None, run: RunSummary | None = None
) -> list[Family]:
    """Return the metrics of one launch on one node.

    Args:
        tally: of its events.
        node: name of the node, a label of every sample.
        now: what the pages show, and the time; None = the launcher does not run any more.
        run: the summary of the launch, if there is one already.
    """
    events = Group(tally.events())
    if run is None:
        run = summarize(Group([*events, *_until_now(events, now)]))
    found = [*_of_run(run, events, node), *_of_tally(tally, node, now)]
    if tally.complete:
        found += [*_of_rounds(run, node), *_of_times(run, node)]
    if now is not None:
        found += _of_ranks(now.ranks, node)
        if now.leads:
            found.append(_of_job(tally, node))
    return [family for family in found if family.samples]


def _until_now(events: Sequence[Event], now: Now | None) -> list[Event]:
    """Make events of what is known besides: the time, and how far the ranks are."""
    if now is None:
        return []
    started = every(events, e.RoundStarted)
    if now.steps is None or not started:
        return [Event(t=now.t)]
    first_iteration, last_iteration, last_ns = now.steps
    return [
        e.RoundProgress(
            t=now.t,
            round=started[-1].round,
            first_iteration=first_iteration,
            last_iteration=last_iteration,
            last_ns=last_ns,
        )
    ]


def _of_run(run: RunSummary, events: Sequence[Event], node: str) -> list[Family]:
    opened = first(events, e.JournalOpened)
    started = every(events, e.RoundStarted)
    decisions = every(events, e.Decision)
    info = Family("undaunted_run_info", "The run this launcher belongs to; always 1.")
    info.add(1, node=node, run_id=run.run_id, version=opened.version if opened else "")
    left = decisions[-1].restarts_left if decisions else run.max_restarts
    exit_code = Family("undaunted_run_exit_code", "Exit code of the launcher, once it has ended.")
    exit_code.add(run.exit_code, node=node, outcome=run.outcome)
    last = started[-1] if started else None
    return [
        info,
        exit_code,
        Family("undaunted_run_start_time_seconds", "When the launcher began, Unix time.").add(
            run.started_wall or None, node=node
        ),
        Family("undaunted_round", "Number of the last round that has begun, from 0.").add(
            last.round if last else None, node=node
        ),
        Family("undaunted_ranks", "Ranks of this node in the last round.").add(
            len(last.ranks) if last else None, node=node
        ),
        Family("undaunted_world_size", "Ranks of the job in the last round.").add(
            last.world_size if last else None, node=node
        ),
        Family("undaunted_restarts_left", "Restarts that the job may still use.").add(
            left, node=node
        ),
    ]


def _of_rounds(run: RunSummary, node: str) -> list[Family]:
    rounds = run.rounds
    failures = Family("undaunted_failures_total", "Rounds in which this node failed.", "counter")
    for kind in _KINDS:
        failures.add(sum(one.outcome == kind for one in rounds), node=node, kind=kind)
    blamed = Family(
        "undaunted_rank_failures_total",
        "Failures of the node that a rank was blamed for.",
        "counter",
    )
    verdicts = [(one.verdict.rank, one.verdict.kind) for one in rounds if one.verdict is not None]
    for rank, kind in sorted(set(verdicts)):
        blamed.add(verdicts.count((rank, kind)), node=node, rank=rank, kind=kind)
    took = [one.phases.total_ns or 0 for one in rounds[:-1] if one.phases is not None]
    return [
        failures,
        blamed,
        Family("undaunted_restarts_total", "Rounds that another one came after.", "counter").add(
            run.restarts, node=node
        ),
        Family(
            "undaunted_restart_seconds_total",
            "From failures of this node until the program ran on all of its ranks again.",
            "counter",
        ).add(sum(took) / _NS, node=node),
        Family(
            "undaunted_iteration", "Highest iteration that a rank of this node has begun."
        ).add(max((one.last_iteration for one in rounds if one.last_iteration is not None),
                  default=None), node=node),
        Family(
            "undaunted_lost_steps_total",
            "Iterations that were completed before a failure and had to be done again.",
            "counter",
        ).add(_lost_steps(rounds), node=node),
    ]  # fmt: skip


def _lost_steps(rounds: Sequence[RoundSummary]) -> int:
    lost = done = 0
    for one in rounds:
        if one.iterations:
            lost += max(0, done - one.iterations[0])
        done = max(done, one.last_iteration or 0)
    return lost


def _of_times(run: RunSummary, node: str) -> list[Family]:
    times = Family(
        "undaunted_time_seconds",
        "Where the time of this launcher went; all classes together are the time that passed.",
    )
    for name in run.times.__struct_fields__:
        label = name.removesuffix("_ns")
        times.add(getattr(run.times, name) / _NS, **{"node": node, "class": label})
    failed = sum(one.outcome in _KINDS for one in run.rounds)
    total_s = run.times.total_ns / _NS
    return [
        times,
        Family("undaunted_goodput_ratio", "Productive part of the time, 0 to 1.").add(
            run.goodput, node=node
        ),
        Family(
            "undaunted_mean_time_to_failure_seconds",
            "Time of this launcher by the number of rounds in which this node failed.",
        ).add(total_s / failed if failed else None, node=node),
        Family("undaunted_run_duration_seconds", "How long this launcher has run.").add(
            total_s, node=node
        ),
    ]


def _of_tally(tally: Tally, node: str, now: Now | None) -> list[Family]:
    limits = Family("undaunted_limit_seconds", "Limits of silence that ranks are held to.")
    for watch, limit_s in sorted(tally.limits.items()):
        limits.add(limit_s, node=node, watch=watch)
    by_kind = Family("undaunted_journal_events_total", "Events of the journal.", "counter")
    for kind, count in sorted(tally.kinds.items()):
        by_kind.add(count, node=node, event=kind)
    too_fast = Family(
        "undaunted_rank_events_lost_total",
        "Events of a rank that came faster than the launcher reads them.",
        "counter",
    )
    for rank, count in sorted(tally.rank_events_lost.items()):
        too_fast.add(count, node=node, rank=rank)
    return [
        limits,
        by_kind,
        too_fast,
        Family(
            "undaunted_journal_events_lost_total",
            "Events that could not be written into the journal.",
            "counter",
        ).add(tally.lost if now is None else now.events_lost, node=node),
        Family(
            "undaunted_launcher_paused_seconds_total",
            "Time in which the launcher itself did not run.",
            "counter",
        ).add(tally.paused_s, node=node),
        Family("undaunted_node_healthy", "1 if the last check found nothing wrong, else 0.").add(
            tally.healthy, node=node
        ),
        Family(
            "undaunted_inprocess_restarts_total", "Restarts inside of the processes.", "counter"
        ).add(tally.inprocess_restarts, node=node),
        *_of_checkpoints(tally, node),
    ]


def _of_checkpoints(tally: Tally, node: str) -> list[Family]:
    if not tally.checkpoints:
        return []
    return [
        Family(f"undaunted_checkpoint_{name}_total", text, "counter").add(value, node=node)
        for name, text, value in (
            ("saves", "Checkpoints saved, one for each rank.", tally.checkpoints["saved"]),
            ("save_failures", "Saves that failed, of each rank.", tally.checkpoints["failed"]),
            ("loads", "Checkpoints loaded, one for each rank.", tally.checkpoints["loaded"]),
            ("stall_seconds", "Time that saves stopped ranks.", tally.checkpoint_s["stall_s"]),
            ("save_seconds", "Time until saves were complete.", tally.checkpoint_s["total_s"]),
            ("load_seconds", "Time that loads took.", tally.checkpoint_s["seconds"]),
        )
    ]


def _of_job(tally: Tally, node: str) -> Family:
    failures = Family(
        "undaunted_job_node_failures_total",
        "Rounds of the job that a failure of the named node ended; told by the node that leads.",
        "counter",
    )
    for failed_node, count in Counter(tally.blamed.values()).items():
        failures.add(count, node=node, failed_node=failed_node)
    return failures


def _of_ranks(ranks: Sequence[RankNow], node: str) -> list[Family]:
    phase = Family("undaunted_rank_phase", "What the rank is doing; 1 for the present phase.")
    iteration = Family("undaunted_rank_iteration", "Iteration that is under way.")
    step = Family("undaunted_rank_step_seconds", "Duration of a step, the mean of this round.")
    age = Family("undaunted_rank_heartbeat_age_seconds", "Time since the last heartbeat.")
    longest = Family(
        "undaunted_rank_heartbeat_longest_seconds", "Longest time between two in this round."
    )
    sections = Family("undaunted_rank_section_open_seconds", "Since when a section is open.")
    for one in ranks:
        about = {"node": node, "rank": one.rank}
        phase.add(1 if one.phase else None, **about, phase=one.phase)
        iteration.add(one.iteration, **about)
        step.add(one.step_s, **about)
        age.add(one.heartbeat_age_s, **about)
        longest.add(one.heartbeat_longest_s, **about)
        for name, open_s in (one.sections or {}).items():
            sections.add(open_s, **about, section=name)
    return [phase, iteration, step, age, longest, sections]
