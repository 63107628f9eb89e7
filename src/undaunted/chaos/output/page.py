"""Verdicts as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, one_line, printable
from undaunted.chaos.output import words
from undaunted.journal.page.markup import base_style, named_by_hash, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from undaunted.chaos.checker.values import Colour, Defect, Judgement
    from undaunted.chaos.result import Moment, Result, RoundOf, RunOf

_STYLE = Path(__file__).with_name("page.css")
_MARKS = {"red": "✖", "yellow": "▲", "green": "✔", "skipped": "\N{EN DASH}"}
_TILES: tuple[Colour, ...] = ("green", "yellow", "red", "skipped")
_NUMBERS = ("rank @ step", "back", "steps lost")
_LONGEST_FINDING = 5_000
# Runs as bars on one axis of time, in units of SVG.
_WIDTH = 1000
_HEIGHT = 30
_BAR_TOP, _BAR_HEIGHT = 10, 16
_LEAST = 2.0  # width of a bar, so that short things are seen as well
_FAILED = ("crash", "hang", "spawn")


def to_html(result: Result) -> str:
    """Return the page."""
    style = base_style() + _STYLE.read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src {named_by_hash(style)}"
    program = text(" ".join(result.argv))
    sections = (_header(result), _tiles(result), _table(result), _findings(result), _runs(result))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>chaos: {program}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n<footer>Made by <code>undaunted chaos --html</code>"
        f"{' ' + text(result.version) if result.version else ''}.</footer>\n</body>\n</html>\n"
    )


def _header(result: Result) -> str:
    began = datetime.fromtimestamp(result.started_wall, UTC)
    about = [count(result.world_size, "rank")]
    if result.iterations is not None:
        about.append(f"steps {result.iterations[0]} to {result.iterations[1]}")
    about += [f"seed {result.seed}", f"{began:%Y-%m-%d %H:%M:%S} UTC"]
    about += [f"took {format_duration(result.seconds)}", result.directory]
    return (
        f"<header><h1>chaos: {text(' '.join(result.argv))}</h1>"
        f"<p>{text(words.summary(result))}</p><p>{text(', '.join(filter(None, about)))}</p>"
        "</header>"
    )


def _tiles(result: Result) -> str:
    counts = words.counts(result.verdicts)
    tiles = [
        f'<section><b class="{colour}">{_MARKS[colour]} {counts.get(colour, 0)}</b>'
        f"<span>{colour}</span></section>"
        for colour in _TILES
        if colour != "skipped" or colour in counts
    ]
    backs = sorted(v.back_s for v in result.verdicts if v.back_s is not None)
    if backs:
        middle = format_duration(backs[len(backs) // 2])
        tiles.append(f"<section><b>{middle}</b><span>back after, median</span></section>")
    lost = [v.steps_lost for v in result.verdicts if v.steps_lost is not None]
    if lost:
        tiles.append(f"<section><b>{sum(lost)}</b><span>steps lost</span></section>")
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _table(result: Result) -> str:
    names = ("fault", "rank @ step", "verdict", "blamed", "back", "spent on", "steps lost",
             "identical")  # fmt: skip
    head = "".join(f"<th{_kind(name)}>{name}</th>" for name in names)
    rows = "\n".join(f"<tr>{''.join(_cells(verdict))}</tr>" for verdict in result.verdicts)
    return (
        '<section><h2>Faults</h2><div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
        '<p class="legend">back: until every rank stepped again; spent on: the parts of that, '
        "in seconds, in the words of undaunted report</p></section>"
    )


def _cells(verdict: Judgement) -> Iterator[str]:
    name = text(verdict.fault.id)
    linked = verdict.skipped or verdict.findings
    yield f'<td><a href="#{name}">{name}</a></td>' if linked else f"<td>{name}</td>"
    yield _number(words.place(verdict))
    yield (
        f'<td class="{verdict.colour}">{_MARKS[verdict.colour]} {verdict.colour}</td>'
        f"<td>{text(words.blamed(verdict))}</td>"
    )
    yield _number(words.back(verdict))
    yield f"<td>{text(words.parts(verdict))}</td>"
    yield _number(words.number(verdict.steps_lost))
    yield f"<td>{text(words.identical(verdict))}</td>"


def _findings(result: Result) -> str:
    articles = [
        _article(verdict) for verdict in result.verdicts if verdict.skipped or verdict.findings
    ]
    if not articles:
        return ""
    return f"<section><h2>What was found</h2>\n{_lines(articles)}\n</section>"


def _article(verdict: Judgement) -> str:
    head = (
        f'<article id="{text(verdict.fault.id)}"><h3><span class="{verdict.colour}">'
        f"{_MARKS[verdict.colour]} {verdict.colour}</span> {text(words.title(verdict))}</h3>"
    )
    why = [f"<p>{text(verdict.skipped)}</p>"] if verdict.skipped else []
    return _lines([head, *why, *map(_finding, verdict.findings), "</article>"])


def _finding(finding: Defect) -> str:
    text = f"<p>{escape(printable(finding.text[:_LONGEST_FINDING]))}</p>"
    remedy = escape(printable(finding.remedy[:_LONGEST_FINDING]))
    return f"{text}<pre>{remedy}</pre>" if remedy else text


def _runs(result: Result) -> str:
    if not result.runs:
        return ""
    problems = "".join(
        f"<p>run {text(run.name)}: {text(problem)}</p>"
        for run in result.runs
        for problem in run.problems
    )
    return (
        f"<section><h2>Runs</h2>\n{timeline(result.runs)}\n"
        '<p class="legend">&#9660; a fault, or what was done for one'
        '<i class="starting"></i>starting<i class="training"></i>training'
        f'<i class="failed"></i>failed</p>{problems}</section>'
    )


def _kind(name: str) -> str:
    return ' class="number"' if name in _NUMBERS else ""


def _number(cell: str) -> str:
    return f'<td class="number">{text(cell)}</td>'


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


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
