"""The metrics of a job that is over, or of what is known of it so far, from its journals. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.journal.metrics.exposition import exposition
from undaunted.journal.metrics.families import families
from undaunted.journal.metrics.family import Family
from undaunted.journal.metrics.tally import Tally
from undaunted.journal.query import node_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from undaunted.journal.job.values import JobSummary
    from undaunted.journal.reader import Journal

_NS = 1_000_000_000


def render_prometheus(job: JobSummary, journals: Iterable[Journal]) -> str:
    """Return the metrics of a job, and of the last launch on each node, as Prometheus reads them.

    Args:
        job: summary of these journals.
        journals: of all nodes.

    Raises:
        ModuleNotFoundError: the package prometheus-client is missing, see `exposition.REMEDY`.
    """
    return exposition(report_families(job, journals))[0].decode()


def report_families(job: JobSummary, journals: Iterable[Journal]) -> list[Family]:
    """Return the metrics of a job, and of the last launch on each node."""
    runs = {run.node: run for run in job.launches}  # the last one of each
    together = {family.name: family for family in job_families(job)}
    for journal in journals:
        launches = journal.launches()
        if not launches:
            continue
        tally = Tally(max_kept=len(launches[-1]))
        for event in launches[-1]:
            tally.take(event)
        node = node_of(launches[-1])
        for family in families(tally, node, run=runs.get(node)):
            if family.name in together:
                together[family.name].samples += family.samples
            else:
                together[family.name] = family
    return list(together.values())


def job_families(job: JobSummary) -> list[Family]:
    """Return the metrics of a job as a whole."""
    info = Family("undaunted_job_info", "The job; always 1.")
    info.add(1, run_id=job.run_id, outcome=job.outcome)
    failures = Family("undaunted_job_failures_total", "Rounds that a failure ended.", "counter")
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
    kind = "counter" if name.endswith("_total") else "gauge"
    return Family(f"undaunted_job_{name}", text, kind).add(value)  # type: ignore[arg-type]


def _of_rank_time(job: JobSummary) -> Sequence[Family]:
    spent = Family(
        "undaunted_job_rank_seconds", "Where the time of all ranks went; spare: without a seat."
    )
    for name in job.times.__struct_fields__:
        spent.add(getattr(job.times, name) / _NS, **{"class": name.removesuffix("_ns")})
    spent.add(job.spare_ns / _NS, **{"class": "spare"})
    cost = Family("undaunted_job_cost", "What that cost, at the price given.")
    if job.cost is not None:
        for name, amount in job.cost.by_class.items():
            cost.add(amount, **{"class": name, "currency": job.cost.currency})
    return [spent, cost]
