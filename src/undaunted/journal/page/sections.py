"""The parts of the page but for the timeline: figures of the job, tables, notes."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING

from undaunted.base.console import plain
from undaunted.base.text import count, format_duration, format_ranks, printable
from undaunted.journal.job.rank_time import SPARE
from undaunted.journal.job.render import (
    CLASSES,
    PHASES,
    checkpoint_lines,
    ordered,
    percent,
    still_runs,
    utc,
)
from undaunted.journal.page.markup import (
    NOTHING,
    Cell,
    elapsed,
    folded,
    for_people,
    lines,
    number,
    table,
    text,
    took,
)
from undaunted.journal.words import outcome_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.journal.goodput import Times
    from undaunted.journal.job.values import JobRound, JobSummary
    from undaunted.journal.reader import Journal


_SECOND_NS = 1_000_000_000
# Units of rank-time, and from how much in all they are used.
_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
_LEAST_UNITS = 10
_NO_END = {True: "still runs", False: "broke off", None: "no end recorded"}
# (sign in the legend, what it says)
_SIGNS = (
    ("crash", "\N{MULTIPLICATION SIGN} in a circle: crash, or a node that was lost"),
    ("hang", "square: hang"),
    ("checkpoint", "checkpoint"),
    ("other", "in-process restart, injected fault, victim of another node, warning"),
)


def heading(job: JobSummary) -> str:
    """Return the name of the run and how it ended."""
    good = job.outcome == "finished"
    outcome = outcome_in_words(job.outcome, job.reason)
    if not outcome:
        outcome = _NO_END[still_runs(job)]
    kind = "good" if good else "bad" if job.outcome else "dim"
    name = text(job.run_id or "run of unknown name")
    return f'{name} <span class="badge {kind}">{text(outcome)}</span>'


def about(job: JobSummary) -> str:
    """Return what was run, when and where, in short paragraphs."""
    paragraphs = []
    if job.argv:
        paragraphs.append(f"<code>{text(' '.join(job.argv), 300)}</code>")
    facts = [_count(len(job.nodes), "node"), _count(job.world_size, "rank")]
    if job.attempts > 1:
        facts.append(f"{job.attempts} launches")
    if job.started_wall is not None:
        facts.append(f"started {utc(job.started_wall)}")
    length = for_people(job.duration_ns)
    facts.append(f"took {length}" if job.outcome else f"recorded up to {length} later")
    paragraphs.append(" \N{MIDDLE DOT} ".join(text(fact) for fact in facts))
    if job.reason:
        paragraphs.append(text(job.reason))
    return "\n".join(f"<p>{one}</p>" for one in paragraphs)


def tiles(job: JobSummary) -> str:
    """Return the figures that matter most."""
    content = "\n".join(
        f'<div><dt>{text(label)}</dt><dd><span class="value">{text(value)}</span>'
        f'<div class="dim">{text(more)}</div></dd></div>'
        for label, value, more in _tiles(job)
    )
    return f'<dl class="tiles">\n{content}\n</dl>'


def _tiles(job: JobSummary) -> Iterator[tuple[str, str, str]]:
    unknown = "not known"
    if job.goodput is None:
        yield "Goodput", unknown, "no rank called undaunted.step"
    else:
        yield "Goodput", percent(job.goodput), "of rank-time was productive"
    if job.ettr is not None:
        yield "ETTR", percent(job.ettr), "effective training time ratio"
    failures = job.failures
    kinds = ", ".join(
        f"{count} {kind}" for kind, count in sorted(failures.by_kind.items()) if count
    )
    yield "Failures", str(failures.count), kinds or "none"
    if failures.mttf_ns is not None:
        yield "MTTF", for_people(failures.mttf_ns), "mean time to failure"
    inside = f"{failures.in_process} more in-process" if failures.in_process else ""
    note = (inside or f"{for_people(job.lost_ns)} lost in them") + ordered(job.restarts_ordered)
    yield "Restarts", str(job.restarts - job.restarts_ordered), note
    if job.lost_steps is not None:
        yield "Lost steps", f"{job.lost_steps:,}", "done again after restarts"
    if job.cost is not None:
        lost = job.cost.total - job.cost.productive
        share = f"{_money(lost, job)} of it not productive"
        yield "Cost", _money(job.cost.total, job), share


def times(job: JobSummary) -> str:
    """Return a bar and a table of the classes, as rank-time."""
    whole_ns = job.times.total_ns + job.spare_ns
    found = [
        (one.title, getattr(job.times, one.field), one.meaning)
        for one in CLASSES
        if getattr(job.times, one.field) > 0
    ]
    if job.spare_ns:
        found.append((SPARE, job.spare_ns, "nodes without a seat, ready to take over"))
    if not whole_ns:
        return "<p>Nothing is recorded.</p>"
    unit_s, unit = next(
        (one for one in _UNITS if whole_ns >= _LEAST_UNITS * one[0] * _SECOND_NS), _UNITS[-1]
    )
    heads = ["class", f"rank-{unit}", "share", "what it was spent on"]
    costs = job.cost.by_class if job.cost is not None else {}
    if costs:
        heads.insert(3, "cost")
    rows = []
    for title, spent_ns, meaning in found:
        name = f'<span class="swatch of-{title}"></span>{text(title)}'
        row = [
            Cell(name),
            Cell(_figure(spent_ns / unit_s / _SECOND_NS), "number"),
            Cell(percent(spent_ns / whole_ns), "number"),
            Cell(text(meaning)),
        ]
        if costs:
            row.insert(3, Cell(text(_money(costs.get(title, 0.0), job)), "number"))
        rows.append(row)
    return _bar(found, whole_ns) + table(heads, rows, "Time by class")


def legend() -> str:
    """Return what colours and signs mean."""
    spans = [(name, name) for name in (*(one.title for one in CLASSES), SPARE)]
    items = "\n".join(
        f'<li><span class="swatch of-{name}"></span>{text(said)}</li>'
        for name, said in [*spans, *_SIGNS]
    )
    return f'<ul class="legend" aria-label="Legend">\n{items}\n</ul>'


def _bar(found: list[tuple[str, int, str]], whole_ns: int) -> str:
    """Return shares as one bar. SVG, since the page allows no styles but its own."""
    pieces, x = [], 0.0
    for title, spent_ns, _ in found:
        width = 1000 * spent_ns / whole_ns
        said = f"{text(title)}: {percent(spent_ns / whole_ns)}"
        pieces.append(
            f'<rect class="of-{title}" x="{x:.2f}" width="{width:.2f}" height="10">'
            f"<title>{said}</title></rect>"
        )
        x += width
    return (
        '<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(pieces)}</svg>"
    )


def _figure(units: float) -> str:
    return f"{units:,.0f}" if units >= 100 else f"{units:.1f}" if units >= 1 else f"{units:.2f}"


def _money(amount: float, job: JobSummary) -> str:
    assert job.cost is not None
    figures = f"{amount:,.0f}" if abs(amount) >= 100 else f"{amount:.2f}"
    return f"{figures} {job.cost.currency}".rstrip()


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# Rows of a table; of more, the last ones are kept and the rest is counted.
_MOST_ROWS = 2000
_LONGEST_TRACEBACK = 4000
_MOST_TRACEBACKS = 200
_LONGEST_EXPLAINED = 50_000


def failures(job: JobSummary) -> str:
    """Return every failure with what is known of its cause, and a button that shows it."""
    failed = [one for one in job.rounds if one.failure is not None]
    if not failed:
        return "<p>There was none.</p>"
    places = {name: place for place, name in enumerate(job.nodes)}
    shown = failed[-_MOST_ROWS:]
    without_traceback = len(shown) - _MOST_TRACEBACKS
    rows = [
        _failure(one, places, with_traceback=k >= without_traceback) for k, one in enumerate(shown)
    ]
    heads = [
        "", "when", "round", "kind", "node", "rank", "cause", "lost steps",
        "running after", "advice",
    ]  # fmt: skip
    return table(heads, rows, "Failures") + _omitted(failed, shown)


def explained(said: str) -> str:
    """Return a section with an explanation of what went wrong, "" without one."""
    if not said:
        return ""
    cut = said if len(said) <= _LONGEST_EXPLAINED else f"{said[:_LONGEST_EXPLAINED]}..."
    return f"<section>\n<h2>What went wrong</h2>\n<pre>{escape(printable(cut))}</pre>\n</section>"


def restarts(job: JobSummary) -> str:
    """Return how long each part of a restart took, on the node that failed."""
    parts = [one.failed_part for one in job.rounds]
    phases = [one.phases for one in parts if one is not None and one.phases is not None]
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


def _failure(one: JobRound, places: Mapping[str, int], *, with_traceback: bool) -> list[Cell]:
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
    part = one.failed_part if with_traceback else None
    if part is not None and part.verdict is not None and part.verdict.traceback:
        traceback = lines(part.verdict.traceback, _LONGEST_TRACEBACK)
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
        Cell(_advice(one), "text"),
    ]


def _advice(one: JobRound) -> str:
    """Return what was best done after a round, and why."""
    said = one.advised
    if said is None:
        return NOTHING
    what = " ".join(part for part in (said.action, ", ".join(said.nodes)) if part)
    return text(f"{'done: ' if said.done else ''}{what}: {said.reason}")


def _moment(one: JobRound) -> int:
    """Return when the round failed; if that is unknown, when it was over."""
    if one.failed_ns is not None:
        return max(0, one.failed_ns)
    return one.stopped_ns if one.stopped_ns is not None else one.began_ns


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
