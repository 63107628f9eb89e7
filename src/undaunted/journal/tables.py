"""The tables of the report: how long each restart took, and where the time went."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.journal.goodput import Times
    from undaunted.journal.summary import InProcessRestart, Phases, RunSummary

# A line is a list of (text, style); styles are names that rich knows, "" for none.
Line = list[tuple[str, str]]

# Width of explanations where nothing is known of the reader's terminal.
_LEGEND_WIDTH = 100
_INPROCESS_SHOWN = 20
_SHOWN_FROM_NS = 50_000  # what lasts less in sum is shown as 0 ms: such a column is left out


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the field it shows, and what it means, in a few words."""

    title: str
    field: str
    meaning: str


INPROCESS = (
    Column("abort", "abort_ns", "of communication, the longest of a rank"),
    Column("stop", "stop_ns", "from there until a rank was out of the function, the longest"),
    Column("finalize", "finalize_ns", "the longest"),
    Column("health", "health_ns", "checks of a rank, the longest"),
    Column("collect", "collect_ns", "garbage, the longest"),
    Column("agree", "agree_ns", "the rest, until all were known to be ready"),
    Column("total", "total_ns", "from the first reason until the function ran again"),
)
CLASSES = (
    Column("productive", "productive_ns", "steps done for the first time"),
    Column("recomputed", "recomputed_ns", "steps done again, and those a failure cut short"),
    Column("spawn", "spawn_ns", "until all workers existed"),
    Column("import", "import_ns", "imports for warm workers, and until the program ran"),
    Column("initialise", "initialise_ns", "from there until monitoring began"),
    Column("load", "load_ns", "until the first step"),
    Column("detect", "detect_ns", "until the failure was noticed (a hang: from its beginning)"),
    Column("evidence", "evidence_ns", "gathered and judged"),
    Column("decide", "decide_ns", "until the ranks were told to stop"),
    Column("stop", "stop_ns", "until all had ended"),
    Column("idle", "idle_ns", "between rounds, before the first and after the last"),
    Column("unknown", "unknown_ns", "the program ran, but never called undaunted.step"),
)


_MEANING = {one.title: one.meaning for one in CLASSES}
PHASES = (
    Column("detect", "detect_ns", "until the failure was noticed (a hang: from its limit)"),
    *(Column(name, f"{name}_ns", _MEANING[name]) for name in ("evidence", "decide", "stop")),
    Column("idle", "idle_ns", "until the next round began"),
    *(Column(name, f"{name}_ns", _MEANING[name]) for name in ("spawn", "import")),
    Column("total", "total_ns", "from the failure until the program ran on all ranks"),
    *(Column(name, f"{name}_ns", _MEANING[name]) for name in ("initialise", "load")),
)
"""Parts of a restart: classes of the time, and their sum up to the program."""


def restart_table(run: RunSummary, width: int | None) -> Iterator[Line]:
    """Yield how long each failure took to be got over; ``width`` as in ``render_run``."""
    failed = [(one.round, one.phases) for one in run.rounds if one.phases is not None]
    shown = [
        one
        for one in PHASES
        if one.title == "total" or any(getattr(each, one.field) is not None for _, each in failed)
    ]
    rows = [
        [str(number), *(_milliseconds(getattr(phases, one.field)) for one in shown)]
        for number, phases in failed
    ]
    yield from _table(
        "restarts, milliseconds", "after round", shown, rows, width, "-: not recorded"
    )


def inprocess_table(run: RunSummary, width: int | None) -> Iterator[Line]:
    """Yield how long the last restarts inside of processes took; ``width`` as above."""
    rows = [
        [f"{one.round}, {each.call}, {each.epoch}", *_inprocess_cells(each)]
        for one in run.rounds
        for each in one.inprocess
    ]
    heading = "in-process restarts, milliseconds"
    if len(rows) > _INPROCESS_SHOWN:
        heading += f" (the last {_INPROCESS_SHOWN} of {len(rows)})"
    yield from _table(
        heading,
        "round, call, restart",
        INPROCESS,
        rows[-_INPROCESS_SHOWN:],
        width,
        "-: not recorded",
    )


def _inprocess_cells(restart: InProcessRestart) -> list[str]:
    return [_milliseconds(getattr(restart, column.field)) for column in INPROCESS]


def time_table(run: RunSummary, width: int | None) -> Iterator[Line]:
    """Yield where the time of each round, and of the run, went; without classes that are empty."""
    shown = [one for one in CLASSES if getattr(run.times, one.field) >= _SHOWN_FROM_NS]
    rows = [[str(one.round), *_durations(one.times, shown)] for one in run.rounds]
    rows.append(["all", *_durations(run.times, shown)])
    whole = run.times.total_ns
    if whole:
        parts = (getattr(run.times, one.field) / whole for one in shown)
        rows.append(["share", *(percent(part) for part in parts)])
    yield from _table("where the time went", "round", shown, rows, width)


def phase_cells(phases: Phases) -> list[tuple[Column, str]]:
    """Return each column of the restarts with its cell."""
    return [(column, _milliseconds(getattr(phases, column.field))) for column in PHASES]


def class_cells(times: Times) -> list[tuple[Column, str]]:
    """Return each class that is not empty with its duration."""
    shown = [one for one in CLASSES if getattr(times, one.field) >= _SHOWN_FROM_NS]
    return list(zip(shown, _durations(times, shown), strict=True))


def percent(part: float) -> str:
    """Return a part of a whole for people; only all of it is 100 %, only nothing of it 0 %."""
    if part <= 0 or part >= 1:
        return f"{part * 100:.0f} %"
    return f"{min(99.9, max(0.1, part * 100)):.{0 if 0.095 <= part < 0.995 else 1}f} %"


def _durations(times: Times, shown: Sequence[Column]) -> list[str]:
    return [format_duration(getattr(times, one.field) / 1e9) for one in shown]


def _milliseconds(ns: int | None) -> str:
    if ns is None:
        return "-"
    ms = ns / 1e6
    return f"{ms:.1f}" if ms < 9.95 else f"{ms:.0f}"


def _table(
    heading: str,
    key: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int | None,
    more: str = "",
) -> Iterator[Line]:
    """Yield a table, or where it is too wide one paragraph per row; then what the columns mean."""
    titles = [key, *(column.title for column in columns)]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    yield [(heading, "bold")]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        for row in rows:
            pairs = zip(titles[1:], row[1:], strict=True)
            said = ", ".join(f"{title} {cell}" for title, cell in pairs)
            name = f"round {row[0]}" if row[0].isdigit() else row[0]
            for part in textwrap.wrap(f"{name}: {said}", max(20, width), subsequent_indent="  "):
                yield [(part, "")]
    else:
        yield [(_row(titles, widths), "dim")]
        for row in rows:
            yield [(_row(row, widths), "")]
    meanings = [f"{column.title}: {column.meaning}" for column in columns]
    legend = "; ".join([*meanings, *([more] if more else [])])
    for part in textwrap.wrap(legend, max(20, width or _LEGEND_WIDTH), break_on_hyphens=False):
        yield [(part, "dim")]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
