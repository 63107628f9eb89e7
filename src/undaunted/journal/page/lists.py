"""The tables of the page: failures, rounds, nodes; and the notes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, format_ranks
from undaunted.journal.checkpoint_lines import checkpoint_lines
from undaunted.journal.page.markup import (
    NOTHING,
    Cell,
    elapsed,
    folded,
    lines,
    number,
    table,
    text,
    took,
)
from undaunted.journal.render import plain
from undaunted.journal.tables import PHASES, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.journal.goodput import Times
    from undaunted.journal.job.values import JobRound, JobSummary
    from undaunted.journal.reader import Journal
    from undaunted.journal.summary import RoundSummary

# Rows of a table; of more, the last ones are kept and the rest is counted.
_MOST_ROWS = 2000
_LONGEST_TRACEBACK = 4000
_MOST_TRACEBACKS = 200


def failures(job: JobSummary) -> str:
    """Return every failure with what is known of its cause, and a button that shows it."""
    failed = [one for one in job.rounds if one.failure is not None]
    if not failed:
        return "<p>There was none.</p>"
    places = {name: place for place, name in enumerate(job.nodes)}
    told = _summaries(job)
    shown = failed[-_MOST_ROWS:]
    with_traceback = len(shown) - _MOST_TRACEBACKS
    rows = [
        _failure(one, places, told.get(id(one)) if k >= with_traceback else None)
        for k, one in enumerate(shown)
    ]
    heads = ["", "when", "round", "kind", "node", "rank", "cause", "lost steps", "running after"]
    return table(heads, rows, "Failures") + _omitted(failed, shown)


def restarts(job: JobSummary) -> str:
    """Return how long the parts of getting over a failure took, on the node that failed."""
    phases = [one.phases for one in _summaries(job).values() if one.phases is not None]
    rows = []
    for column in PHASES:
        known = [ns for one in phases if (ns := getattr(one, column.field)) is not None]
        if known:
            figures = [took(round(median(known))), took(max(known)), number(len(known))]
            rows.append([Cell(text(column.title)), *figures, Cell(text(column.meaning))])
    if not rows:
        return ""
    heads = ["phase", "median", "longest", "of restarts", "what it is"]
    return folded("How long restarts took", table(heads, rows, "How long restarts took"))


def rounds(job: JobSummary) -> str:
    """Return every round of the job."""
    several = job.attempts > 1
    shown = job.rounds[-_MOST_ROWS:]
    rows = []
    for one in shown:
        name = f"{one.attempt}.{one.round}" if several else str(one.round)
        length = None if one.stopped_ns is None else one.stopped_ns - one.began_ns
        rows.append(
            [
                number(name),
                Cell(elapsed(one.began_ns), "number"),
                took(length),
                number(len(one.parts)),
                number(one.world_size),
                Cell(_iterations(one), "number"),
                Cell(_productive(one.times), "number"),
                Cell(text(one.outcome) or NOTHING),
                Cell(text(one.cause) if one.outcome != "finished" else "", "text"),
            ]
        )
    heads = [
        "launch.round" if several else "round", "began", "took", "nodes", "ranks", "iterations",
        "productive", "outcome", "cause",
    ]  # fmt: skip
    content = table(heads, rows, "Rounds") + _omitted(job.rounds, shown)
    return folded(f"Rounds ({len(job.rounds)})", content)


def nodes(job: JobSummary) -> str:
    """Return every node: its ranks, failures, goodput and clock."""
    clocks = {name: one for one in job.clocks for name in one.nodes}
    rows = []
    for name in job.nodes[:_MOST_ROWS]:
        launches = [one for one in job.launches if one.node == name]
        ranks = launches[-1].rounds[-1].ranks if launches and launches[-1].rounds else []
        whole_ns = sum(one.times.total_ns for one in launches)
        productive_ns = sum(one.times.productive_ns for one in launches)
        clock = clocks.get(name)
        rows.append(
            [
                Cell(text(name)),
                Cell(text(format_ranks(ranks)) or NOTHING, "text"),
                number(len(launches)),
                number(job.failures.by_node.get(name, 0)),
                Cell(percent(productive_ns / whole_ns) if whole_ns else NOTHING, "number"),
                Cell(_clock(clock.method, clock.uncertainty_ns) if clock else NOTHING),
            ]
        )
    heads = ["node", "ranks at the end", "launches", "failures", "productive", "its clock"]
    content = table(heads, rows, "Nodes")
    return folded(f"Nodes ({len(job.nodes)})", content)


def checkpoints(job: JobSummary) -> str:
    """Return what checkpoints have cost, and how often they should be taken."""
    if job.checkpoints is None:
        return ""
    said = plain(list(checkpoint_lines(job.checkpoints)))
    return folded("Checkpoints", f"<pre>{lines(said, _LONGEST_TRACEBACK)}</pre>")


def notes(job: JobSummary, journals: Sequence[Journal]) -> str:
    """Return what else a reader should know."""
    said = [f"{one.path.name}: {_damage(one)}" for one in journals if one.unreadable or one.unknown]
    said += job.notes
    for one in job.launches:
        said += [f"{one.node}: {note}" for note in one.notes]
    said = list(dict.fromkeys(said))
    if not said:
        return ""
    items = "\n".join(f"<li>{text(one)}</li>" for one in said[:_MOST_ROWS])
    return folded(f"Notes ({len(said)})", f'<ul class="notes">\n{items}\n</ul>')


def _damage(journal: Journal) -> str:
    said = []
    if journal.unreadable:
        said.append(f"{count(journal.unreadable, 'line')} could not be read")
    if journal.unknown:
        said.append(f"skipped: {count(journal.unknown, 'event')} of a newer version")
    return "; ".join(said)


def _failure(one: JobRound, places: Mapping[str, int], told: RoundSummary | None) -> list[Cell]:
    failure = one.failure
    assert failure is not None
    at_ns = _moment(one)
    place = places.get(failure.node, -1)
    button = (
        f'<button type="button" disabled data-at="{at_ns // 1_000_000}" data-node="{place}" '
        f'data-rank="{failure.rank}">show</button>'
        if place >= 0
        else ""
    )
    cause = text(failure.line or one.cause)
    if told is not None and told.verdict is not None and told.verdict.traceback:
        traceback = lines(told.verdict.traceback, _LONGEST_TRACEBACK)
        cause = f"<details><summary>{cause}</summary><pre>{traceback}</pre></details>"
    return [
        Cell(button),
        Cell(elapsed(at_ns), "number"),
        number(one.round),
        Cell(text(failure.kind)),
        Cell(text(failure.node) or NOTHING),
        number(failure.rank if failure.rank >= 0 else None),
        Cell(cause, "text"),
        number(one.lost_steps),
        took(one.restart_ns),
    ]


def _moment(one: JobRound) -> int:
    """Return when the round failed; where nobody tells, when it was over."""
    if one.failed_ns is not None:
        return max(0, one.failed_ns)
    return one.stopped_ns if one.stopped_ns is not None else one.began_ns


def _summaries(job: JobSummary) -> dict[int, RoundSummary]:
    """Return what the node that failed first tells of a round, by the identity of the round."""
    found: dict[int, RoundSummary] = {}
    by_number = [{one.round: one for one in launch.rounds} for launch in job.launches]
    for one in job.rounds:
        for part in one.parts:
            if one.failure is not None and part.node == one.failure.node:
                summary = by_number[part.launch].get(one.round)
                if summary is not None:
                    found[id(one)] = summary
    return found


def _iterations(one: JobRound) -> str:
    if one.first_iteration is None or one.last_iteration is None:
        return NOTHING
    return f"{one.first_iteration}{NOTHING}{one.last_iteration}"


def _productive(times: Times) -> str:
    whole_ns = times.total_ns
    return percent(times.productive_ns / whole_ns) if whole_ns else NOTHING


def _clock(method: str, uncertainty_ns: int | None) -> str:
    if method == "reference":
        return "the axis is this one"
    if uncertainty_ns is None:
        return text(f"put there by {method}")
    return text(f"by {method}, within {format_duration(uncertainty_ns / 1e9)}")


def _omitted(every: Sequence[object], shown: Sequence[object]) -> str:
    left = len(every) - len(shown)
    return f'<p class="dim">{left} earlier ones are left out.</p>' if left else ""
