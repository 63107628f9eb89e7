"""A job's summary as text for people: lines of styled pieces, see `undaunted.journal.render`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.console import labelled, table, wrap
from undaunted.base.text import count, format_duration, one_line
from undaunted.journal.render import (
    CLASSES,
    INDENT,
    KINDS,
    NO_END,
    STYLES,
    advice_line,
    alike,
    checkpoint_lines,
    cost_line,
    counted,
    down,
    longest_cause,
    ordered,
    percent,
    shown_rounds,
    told_for,
    utc,
    why,
    without_numbers,
)
from undaunted.journal.words import outcome_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from undaunted.base.console import Line
    from undaunted.journal.job.values import JobRound, JobSummary

_NAMED = 5  # nodes and ranks that failed
_SPARE = "nodes without a seat in the round"


def render_job(
    job: JobSummary, *, width: int | None = None, times: bool = False, everything: bool = False
) -> list[Line]:
    """Return what a job was, on all its nodes.

    Args:
        job: its summary.
        width: columns of the terminal; None leaves long lines alone.
        times: with the table of times.
        everything: every round, also those that are like the one before.
    """
    lines = [*_header(job, width), []]
    seen: set[str] = set()
    for few in shown_rounds(job.rounds, _likeness, everything=everything):
        if len(few) > 1:
            first, last = _name(job, few[0]), _name(job, few[-1])
            lines.append(alike(first, last, {one.outcome for one in few}))
        else:
            longest = longest_cause(few[0].cause, 500, seen)
            lines.extend(_round(job, few[0], width, longest))
    if times and job.times.total_ns + job.spare_ns:
        lines.append([])
        lines.extend(_table(job))
    for note in job.notes:
        lines.extend(labelled("note: ", one_line(note), width, style="yellow"))
    return lines


def _header(job: JobSummary, width: int | None) -> Iterator[Line]:
    outcome = outcome_in_words(job.outcome, job.reason) or NO_END[still_runs(job)]
    figures = []
    if job.exit_code is not None:
        figures.append(f"exit code {job.exit_code}")
    if told := down(job.lost_ns, job.duration_ns):
        figures.append(told)
    if job.goodput is not None and job.ettr is not None:
        figures += [f"goodput {percent(job.goodput)}", f"ETTR {percent(job.ettr)}"]
    yield [
        (f"job {one_line(job.run_id)}" if job.run_id else "job of unknown name", "bold"),
        (": ", ""),
        (one_line(outcome), STYLES.get(job.outcome, "yellow")),
        ("".join(f", {figure}" for figure in figures), ""),
    ]
    failed = [(one.outcome, one.cause) for one in job.rounds if one.outcome in KINDS]
    yield from why(failed, job.reason if job.exit_code or not failed else "", width)
    if job.argv:
        where = f"{count(job.world_size, 'rank')}, {count(len(job.nodes), 'node')}"
        program = f"{one_line(' '.join(job.argv), longest=200)} ({where})"
        yield from labelled("program:  ", program, width)
    if job.started_wall is not None:
        yield [("started:  ", "dim"), (utc(job.started_wall) + _took(job), "")]
    yield [("restarts: ", "dim"), (_restarts(job), "")]
    if job.failures.count:
        yield from labelled("failures: ", _failures(job), width)
    if job.cost is not None:
        yield from cost_line(job.cost, width)
    if job.checkpoints is not None:
        yield from checkpoint_lines(job.checkpoints)
    if len(job.clocks) > 1:
        yield [("clocks:   ", "dim"), (_clocks(job), "")]


def still_runs(job: JobSummary) -> bool | None:
    """Tell whether a launcher still runs, as far as that is known of those without an end."""
    known = {run.running for run in job.launches if not run.outcome}
    return True if True in known else False if known == {False} else None


def _took(job: JobSummary) -> str:
    text = f", took {format_duration(job.duration_ns / 1e9)}"
    if not job.outcome:
        text = told_for(job.duration_ns)
    if job.attempts > 1:
        text += f" in {job.attempts} launches, {format_duration(job.between_ns / 1e9)} between them"
    return text


def _restarts(job: JobSummary) -> str:
    text = str(job.restarts - job.restarts_ordered) + ordered(job.restarts_ordered)
    if job.lost_ns:
        text += f", {format_duration(job.lost_ns / 1e9)} lost"
    if job.lost_steps:
        text += f", {count(job.lost_steps, 'step')} done again"
    if job.failures.in_process:
        text += f"; {job.failures.in_process} in-process"
    return text


def _failures(job: JobSummary) -> str:
    failures = job.failures
    text = str(failures.count)
    if failures.mttf_ns is not None:
        text += f", one in {format_duration(failures.mttf_ns / 1e9)} (MTTF)"
    text += f": {counted(failures.by_kind)}"
    if failures.by_node:
        text += f"; by node: {_most(failures.by_node)}"
    if failures.by_rank:
        text += f"; by rank: {_most(failures.by_rank)}"
    return text


def _most(numbers: Mapping[str, int] | Mapping[int, int]) -> str:
    shown = [f"{one_line(str(name))} ({number})" for name, number in numbers.items()]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more


def _clocks(job: JobSummary) -> str:
    known = [clock.uncertainty_ns for clock in job.clocks if clock.uncertainty_ns is not None]
    text = f"{len(job.clocks)} machines, related by the order of events"
    return text + (f" to ±{format_duration(max(known) / 1e9)}" if len(known) > 1 else "")


def _round(job: JobSummary, one: JobRound, width: int | None, longest: int) -> Iterator[Line]:
    took = "-" if one.stopped_ns is None else format_duration((one.stopped_ns - one.began_ns) / 1e9)
    where = f"{count(one.world_size, 'rank')}, {count(len(one.parts), 'node')}"
    yield [
        (f"round {_name(job, one):<2} ", "bold"),
        (f"{took}, {where}, {_iterations(one)}", ""),
        (one_line(one.outcome or "no end recorded"), STYLES.get(one.outcome, "yellow")),
    ]
    if one.cause and one.outcome != "finished":
        for part in wrap(one_line(one.cause, longest=longest), width, len(INDENT)):
            yield [(INDENT + part, "")]
    yield from advice_line(one.advised, width)
    undone = [f"{count(one.lost_steps, 'step')} done again"] if one.lost_steps else []
    if one.restart_ns is not None:
        took = format_duration(one.restart_ns / 1e9)
        undone.append(f"all ranks running again {took} after the failure")
    if undone:
        yield [(INDENT + ", ".join(undone), "dim")]


def _name(job: JobSummary, one: JobRound) -> str:
    return f"{one.round}" if job.attempts == 1 else f"{one.attempt}.{one.round}"


def _likeness(one: JobRound) -> object:
    return one.outcome, without_numbers(one.cause), one.advised is None


def _iterations(one: JobRound) -> str:
    if one.first_iteration is None or one.last_iteration is None:
        return ""
    return f"iterations {one.first_iteration} to {one.last_iteration}, "


def _table(job: JobSummary) -> Iterator[Line]:
    """Yield the rank-time and cost of each class that is not empty."""
    spent = [(one.title, getattr(job.times, one.field), one.meaning) for one in CLASSES]
    spent.append(("spare", job.spare_ns, _SPARE))
    whole_ns = job.times.total_ns + job.spare_ns
    heads = ["", "rank-time", "share"]
    if job.cost is not None:
        heads.append(one_line(job.cost.currency) or "cost")
    rows: list[list[str | tuple[str, str]]] = []
    for title, ns, meaning in spent:
        if ns <= 0:
            continue
        cost = [] if job.cost is None else [f"{job.cost.by_class[title]:,.2f}"]
        took = format_duration(ns / 1e9)
        rows.append([title, took, percent(ns / whole_ns), *cost, (meaning, "dim")])
    total = [] if job.cost is None else [f"{job.cost.total:,.2f}"]
    rows.append(["all", format_duration(whole_ns / 1e9), "100 %", *total, ""])
    yield [("where the time of all ranks went", "bold")]
    yield from table([*heads, ""], rows, right=range(1, len(heads)))
