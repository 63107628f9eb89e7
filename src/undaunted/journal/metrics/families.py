"""Families of metrics of one launcher, and of a job from its journals. Pure functions.

The same families come from a running launcher and from its journal; what only pages tell, such as
the age of a heartbeat, a journal does not have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.journal import events as e
from undaunted.journal.job.summary import summarize
from undaunted.journal.metrics.exposition import Family, exposition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobSummary, LaunchSummary, NodePart
    from undaunted.journal.launch import LaunchState

_NS = 1_000_000_000
_KINDS = ("crash", "hang", "spawn")
# Of restarts, in seconds: warm ones take tenths, large jobs minutes.
_RESTART_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank. Durations are in seconds; None = not known, or not yet.

    Attributes:
        rank: global rank.
        phase: as in ``progress.snapshot.Phase``, in small letters.
        iteration: the one that is under way.
        step_s: how long a step takes, the mean since the first one of the round.
        heartbeat_age_s: since the last one.
        heartbeat_longest_s: the longest time between two in this round.
        sections: of each section that is open, since when.
    """

    rank: int
    phase: str = ""
    iteration: int | None = None
    step_s: float | None = None
    heartbeat_age_s: float | None = None
    heartbeat_longest_s: float | None = None
    sections: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """One node.

    Attributes:
        t: CLOCK_MONOTONIC, nanoseconds.
        ranks: those of this node.
        steps: lowest iteration that a rank has begun with, highest that one has begun, and when
            (CLOCK_MONOTONIC, nanoseconds); None as long as there is none.
        events_lost: events that could not be written into the journal.
        leads: it leads a job of several nodes.
    """

    t: int
    ranks: tuple[RankNow, ...] = ()
    steps: tuple[int, int, int] | None = None
    events_lost: int = 0
    leads: bool = False


def families(
    launch: LaunchState, node: str, now: Now | None = None, run: LaunchSummary | None = None
) -> list[Family]:
    """Return the metrics of one launch on one node.

    Args:
        launch: what its journal tells.
        node: name of the node, a label of every sample; so is the id of the run, for two jobs
            that share a node.
        now: what the pages show, and the time; None = the launcher does not run any more.
        run: the summary of the launch, if there is one already.
    """
    if run is None:
        run = summarize(launch if now is None else launch.at(now.t, now.steps))
    found = [*_of_run(run, launch), *_of_launch(launch, now)]
    if launch.complete:
        found += [*_of_rounds(run), *_of_times(run)]
    if now is not None:
        found += [*_of_ranks(now.ranks), _of_slow_ranks(launch)]
        if now.leads:
            found.append(_of_blamed_nodes(launch))
    return [family.labelled(node=node, run_id=run.run_id) for family in found if family.samples]


def _of_run(run: LaunchSummary, launch: LaunchState) -> list[Family]:
    info = Family("undaunted_run_info", "The run this launcher belongs to; always 1.")
    version = launch.opened.version if launch.opened else ""
    info.add(1, version=version)
    left = launch.decision.restarts_left if launch.decision else run.max_restarts
    exit_code = Family("undaunted_run_exit_code", "Exit code of the launcher, once it has ended.")
    exit_code.add(run.exit_code, outcome=run.outcome)
    last = launch.current.first(e.RoundStarted)
    return [
        info,
        exit_code,
        Family("undaunted_run_start_time_seconds", "When the launcher began, Unix time.").add(
            run.started_wall or None
        ),
        Family("undaunted_round", "Number of the last round that has begun, from 0.").add(
            last.round if last else None
        ),
        Family("undaunted_ranks", "Ranks of this node in the last round.").add(
            len(last.ranks) if last else None
        ),
        Family("undaunted_world_size", "Ranks of the job in the last round.").add(
            last.world_size if last else None
        ),
        Family("undaunted_restarts_left", "Restarts that the job may still use.").add(left),
    ]


def _of_rounds(run: LaunchSummary) -> list[Family]:
    rounds = run.rounds
    failures = Family("undaunted_failures_total", "Rounds in which this node failed.")
    for kind in _KINDS:
        failures.add(sum(one.outcome == kind for one in rounds), kind=kind)
    blamed = Family(
        "undaunted_rank_failures_total", "Failures of the node that a rank was blamed for."
    )
    verdicts = [(one.verdict.rank, one.verdict.kind) for one in rounds if one.verdict is not None]
    for rank, kind in sorted(set(verdicts)):
        blamed.add(verdicts.count((rank, kind)), rank=rank, kind=kind)
    phases = [one.phases for one in rounds[:-1] if one.phases is not None]
    took = [each.total_ns / _NS for each in phases if each.total_ns]
    begun = [one.last_iteration for one in rounds if one.last_iteration is not None]
    return [
        failures,
        blamed,
        Family("undaunted_restarts_total", "Rounds that another one came after.").add(run.restarts),
        Family(
            "undaunted_restart_seconds_total",
            "From failures of this node until the program ran on all of its ranks again.",
        ).add(sum(took)),
        Family(
            "undaunted_restart_duration_seconds",
            "How long each of these took: how many took no longer than a bound.",
        ).observe(took, _RESTART_BUCKETS_S),
        Family("undaunted_iteration", "Highest iteration that a rank of this node has begun.").add(
            max(begun, default=None)
        ),
        Family(
            "undaunted_lost_steps_total",
            "Iterations that were completed before a failure and had to be done again.",
        ).add(_lost_steps(rounds)),
    ]


def _lost_steps(rounds: Sequence[NodePart]) -> int:
    lost = done = 0
    for one in rounds:
        if one.iterations:
            lost += max(0, done - one.iterations[0])
        done = max(done, one.last_iteration or 0)
    return lost


def _of_times(run: LaunchSummary) -> list[Family]:
    times = Family(
        "undaunted_time_seconds",
        "Time of this launcher by class; all classes together are the time that passed.",
    )
    for name in run.times.__struct_fields__:
        label = name.removesuffix("_ns")
        times.add(getattr(run.times, name) / _NS, **{"class": label})
    failed = sum(one.outcome in _KINDS for one in run.rounds)
    total_s = run.times.total_ns / _NS
    return [
        times,
        Family("undaunted_goodput_ratio", "Productive part of the time, 0 to 1.").add(run.goodput),
        Family(
            "undaunted_mean_time_to_failure_seconds",
            "Time of this launcher by the number of rounds in which this node failed.",
        ).add(total_s / failed if failed else None),
        Family("undaunted_run_duration_seconds", "How long this launcher has run.").add(total_s),
    ]


def _of_launch(launch: LaunchState, now: Now | None) -> list[Family]:
    limits = Family("undaunted_limit_seconds", "Limits of silence that ranks are held to.")
    for watch, limit_s in sorted(launch.limits.items()):
        limits.add(limit_s, watch=watch)
    by_kind = Family("undaunted_journal_events_total", "Events of the journal.")
    for kind, count in sorted(launch.kinds.items()):
        by_kind.add(count, event=kind)
    too_fast = Family(
        "undaunted_rank_events_lost_total",
        "Events of a rank that came faster than the launcher reads them.",
    )
    for rank, count in sorted(launch.rank_events_lost.items()):
        too_fast.add(count, rank=rank)
    return [
        limits,
        by_kind,
        too_fast,
        Family(
            "undaunted_journal_events_lost_total",
            "Events that could not be written into the journal.",
        ).add(launch.lost if now is None else now.events_lost),
        Family(
            "undaunted_launcher_paused_seconds_total",
            "Time for which the launcher's agent, or its machine, stood still while ranks ran.",
        ).add(launch.paused_s),
        Family("undaunted_node_healthy", "1 if the last check found nothing wrong, else 0.").add(
            launch.healthy
        ),
        Family("undaunted_inprocess_restarts_total", "Restarts inside of the processes.").add(
            launch.inprocess_restarts
        ),
        *_of_checkpoints(launch),
    ]


def _of_slow_ranks(launch: LaunchState) -> Family:
    slower = Family(
        "undaunted_rank_slower_ratio",
        "By which share a rank takes longer than its peers in its own work, while it is slow.",
    )
    for rank, share in sorted(launch.slow.items()):
        slower.add(share, rank=rank)
    return slower


def _of_checkpoints(launch: LaunchState) -> list[Family]:
    if not launch.checkpoints:
        return []
    return [
        Family(f"undaunted_checkpoint_{name}_total", text).add(value)
        for name, text, value in (
            ("saves", "Checkpoints saved, one for each rank.", launch.checkpoints["saved"]),
            ("save_failures", "Saves that failed, of each rank.", launch.checkpoints["failed"]),
            ("loads", "Checkpoints loaded, one for each rank.", launch.checkpoints["loaded"]),
            ("stall_seconds", "Time that saves stopped ranks.", launch.checkpoint_s["stall_s"]),
            ("save_seconds", "Time until saves were complete.", launch.checkpoint_s["total_s"]),
            ("load_seconds", "Time that loads took.", launch.checkpoint_s["seconds"]),
        )
    ]


def _of_blamed_nodes(launch: LaunchState) -> Family:
    failures = Family(
        "undaunted_job_node_failures_total",
        "Rounds of the job that a failure of the named node ended; told by the node that leads.",
    )
    for failed_node, count in Counter(launch.blamed_nodes.values()).items():
        failures.add(count, failed_node=failed_node)
    return failures


def _of_ranks(ranks: Sequence[RankNow]) -> list[Family]:
    phase = Family("undaunted_rank_phase", "Phase of the rank; 1 for the present one.")
    iteration = Family("undaunted_rank_iteration", "Iteration that is under way.")
    step = Family("undaunted_rank_step_seconds", "Duration of a step, the mean of this round.")
    age = Family("undaunted_rank_heartbeat_age_seconds", "Time since the last heartbeat.")
    longest = Family(
        "undaunted_rank_heartbeat_longest_seconds", "Longest time between two in this round."
    )
    sections = Family("undaunted_rank_section_open_seconds", "Since when a section is open.")
    for one in ranks:
        about = {"rank": one.rank}
        phase.add(1 if one.phase else None, **about, phase=one.phase)
        iteration.add(one.iteration, **about)
        step.add(one.step_s, **about)
        age.add(one.heartbeat_age_s, **about)
        longest.add(one.heartbeat_longest_s, **about)
        for name, open_s in (one.sections or {}).items():
            sections.add(open_s, **about, section=name)
    return [phase, iteration, step, age, longest, sections]


# --- of a job ------------------------------------------------------------------------------------


def render_prometheus(job: JobSummary, launches: Iterable[Launch]) -> str:
    """Return the metrics of a job, and of the last launch on each node, as Prometheus reads them.

    Args:
        job: summary of these launches.
        launches: of all nodes.

    Raises:
        ModuleNotFoundError: the package prometheus-client is missing, see `exposition.REMEDY`.
    """
    return exposition(report_families(job, launches))[0].decode()


def report_families(job: JobSummary, launches: Iterable[Launch]) -> list[Family]:
    """Return the metrics of a job, and of the last launch in each journal."""
    runs = {run.node: run for run in job.launches}  # the last one of each
    together = {family.name: family for family in job_families(job)}
    for launch in {launch.path: launch for launch in launches}.values():
        for family in families(launch.state, launch.node, run=runs.get(launch.node)):
            if family.name in together:
                together[family.name].samples += family.samples
            else:
                together[family.name] = family
    return list(together.values())


def job_families(job: JobSummary) -> list[Family]:
    """Return the metrics of a job as a whole."""
    info = Family("undaunted_job_info", "The job; always 1.")
    info.add(1, run_id=job.run_id, outcome=job.outcome)
    failures = Family("undaunted_job_failures_total", "Rounds that a failure ended.")
    for kind in sorted({"crash", "hang", "spawn", "lost", *job.failures.by_kind}):
        failures.add(job.failures.by_kind.get(kind, 0), kind=kind)
    mttf_ns = job.failures.mttf_ns
    found = [
        info,
        failures,
        _one("duration_seconds", "From its first launcher's start.", job.duration_ns / _NS),
        _one("goodput_ratio", "Productive part of the rank-time, 0 to 1.", job.goodput),
        _one("ettr_ratio", "Productive time of a rank by the duration, 0 to 1.", job.ettr),
        _one(
            "mean_time_to_failure_seconds",
            "How long rounds ran, by the number of failures.",
            None if mttf_ns is None else mttf_ns / _NS,
        ),
        _one("attempts_total", "How often it was launched.", job.attempts),
        _one("restarts_total", "Rounds that another one came after.", job.restarts),
        _one("lost_steps_total", "Completed steps that were done again.", job.lost_steps),
        _one("world_size", "Ranks of the last round.", job.world_size),
        *_of_rank_time(job),
    ]
    return [family for family in found if family.samples]


def _one(name: str, text: str, value: float | None) -> Family:
    return Family(f"undaunted_job_{name}", text).add(value)


def _of_rank_time(job: JobSummary) -> Sequence[Family]:
    spent = Family(
        "undaunted_job_rank_seconds", "Time of all ranks by class; spare: without a seat."
    )
    for name in job.times.__struct_fields__:
        spent.add(getattr(job.times, name) / _NS, **{"class": name.removesuffix("_ns")})
    spent.add(job.spare_ns / _NS, **{"class": "spare"})
    cost = Family("undaunted_job_cost", "Cost of that time, at the price given.")
    if job.cost is not None:
        for name, amount in job.cost.by_class.items():
            cost.add(amount, **{"class": name, "currency": job.cost.currency})
    return [spent, cost]
