"""The head of the page: what the run was, its figures, and where its time went."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from undaunted.journal.job.lines import still_runs
from undaunted.journal.job.rank_time import SPARE
from undaunted.journal.page.markup import Cell, for_people, table, text
from undaunted.journal.tables import CLASSES, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.journal.job.values import JobSummary

_SECOND_NS = 1_000_000_000
# Units of rank-time, and from how much in all they are used.
_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
_LEAST_UNITS = 10
_NO_END = {True: "still runs", False: "killed", None: "no end recorded"}
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
    outcome = job.outcome.replace("_", " ")
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
    if (when := _utc(job.started_wall)) is not None:
        facts.append(f"started {when}")
    length = for_people(job.duration_ns)
    facts.append(f"took {length}" if job.outcome else f"told up to {length} later")
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
    yield "Restarts", str(job.restarts), inside or f"{for_people(job.lost_ns)} lost in them"
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
    return _bar(found, whole_ns) + table(heads, rows, "Where the time went")


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


def _utc(wall: float | None) -> str | None:
    if wall is None:
        return None
    try:
        when = datetime.fromtimestamp(wall, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
    return when.strftime("%Y-%m-%d %H:%M UTC")


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
