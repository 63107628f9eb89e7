"""Runs as bars on one axis of time, as SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, one_line
from undaunted.journal.page.markup import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.chaos.trials.result import Moment, RoundOf, RunOf

_WIDTH = 1000
_HEIGHT = 30
_BAR_TOP, _BAR_HEIGHT = 10, 16
_LEAST = 2.0  # so that also short things are seen
_FAILED = ("crash", "hang", "spawn")


def timeline(runs: Sequence[RunOf]) -> str:
    """Return all runs, one below the other, as markup."""
    longest = max((_length(run) for run in runs), default=0.0) or 1.0
    return "\n".join(_run(run, longest) for run in runs)


def _length(run: RunOf) -> float:
    ends = [one.ended or one.started for one in run.rounds]
    ends += [moment.seconds for moment in run.moments]
    return max(ends, default=run.seconds)


def _run(run: RunOf, longest: float) -> str:
    scale = _WIDTH / longest
    shapes = [shape for one in run.rounds for shape in _round(one, scale)]
    shapes += [_mark(moment, scale) for moment in run.moments]
    name = text(_name(run))
    label = escape(_spoken(run), quote=True)
    return (
        f'<div class="run"><span title="{name}">{name}</span>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(shapes)}</svg>'
        f'<span class="number">{format_duration(_length(run))}</span></div>'
    )


def _round(one: RoundOf, scale: float) -> Iterator[str]:
    end = one.started if one.ended is None else one.ended
    stepping = end if one.stepping is None else one.stepping
    what = f"round {one.round}" + (f", launcher {one.launch + 1}" if one.launch else "")
    yield _bar("starting", one.started, stepping, scale, f"{what}: starting")
    ending = f"{what}: {one.outcome or 'training'}" + (f": {one.cause}" if one.cause else "")
    if one.stepping is not None:
        yield _bar("training", one.stepping, end, scale, ending)
    if one.outcome in _FAILED:
        yield _bar("failed", end, end, scale, ending)


def _bar(kind: str, begin: float, end: float, scale: float, title: str) -> str:
    width = max(_LEAST, (end - begin) * scale)
    left = min(begin * scale, _WIDTH - width)
    took = format_duration(max(0.0, end - begin))
    return (
        f'<rect class="bar-{kind}" x="{left:.1f}" y="{_BAR_TOP}" width="{width:.1f}" '
        f'height="{_BAR_HEIGHT}"><title>{text(f"{title} ({took})")}</title></rect>'
    )


def _mark(moment: Moment, scale: float) -> str:
    x = moment.seconds * scale
    said = f"{moment.what} {moment.fault} after {format_duration(moment.seconds)}: {moment.text}"
    return (
        f'<path class="mark" d="M{x - 5:.1f} 0h10l-5 9z"><title>{text(said.rstrip(": "))}</title>'
        "</path>"
    )


def _name(run: RunOf) -> str:
    faults = [moment.fault for moment in run.moments if moment.what == "fault"]
    told = f": {', '.join(faults)}" if faults else ""
    return run.name if run.name == "undisturbed" else f"run {run.name}{told}"


def _spoken(run: RunOf) -> str:
    return one_line(f"{_name(run)}, {count(len(run.rounds), 'round')}")
