"""Summaries as text for people: lines of styled pieces, without any terminal in sight."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration, format_ranks, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.journal.events import RankExited
    from undaunted.journal.restarts import Phases, RoundSummary, RunSummary

# A line is a list of (text, style); styles are names that rich knows, "" for none.
Line = list[tuple[str, str]]

_STYLES = {"finished": "green", "crash": "red", "hang": "red", "spawn": "red", "failed": "red"}
_INDENT = " " * 9
# How many rounds `render_short` explains.
_SHORT_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    field: str


_COLUMNS = (
    _Column("detect", "detect_ns"),
    _Column("evidence", "evidence_ns"),
    _Column("verdict", "verdict_ns"),
    _Column("decide", "decide_ns"),
    _Column("stop", "stop_ns"),
    _Column("spawn", "spawn_ns"),
    _Column("line", "first_line_ns"),
    _Column("total", "total_ns"),
    _Column("step", "first_step_ns"),
)
_LEGEND = (
    "total: from the failure until the program ran again on every rank; step: from there until "
    "all had called undaunted.step; -: not recorded"
)


def render_run(run: RunSummary, *, width: int | None = None) -> list[Line]:
    """Return the report of one launch.

    Args:
        run: the summary.
        width: columns of the terminal; None leaves long lines alone.
    """
    lines = list(_header(run))
    lines.append([])
    for one in run.rounds:
        lines.extend(_round(one, width))
    if any(one.phases is not None for one in run.rounds):
        lines.append([])
        lines.extend(_restart_table(run, width))
    lines.extend([("note: ", "yellow"), (one_line(note), "")] for note in run.notes)
    if run.log_dir:
        lines.append([("logs: ", "dim"), (printable(run.log_dir), "")])
    return lines


def render_round(run: RunSummary, number: int, *, width: int | None = None) -> list[Line]:
    """Return everything known about one round; nothing if the run has no such round."""
    found = [one for one in run.rounds if one.round == number]
    lines: list[Line] = []
    for one in found:
        lines.extend(_round(one, width))
        lines.extend(_details(one))
        if one.phases is not None:
            lines.extend(_phase_list(one.phases))
    return lines


def render_short(run: RunSummary, run_dir: str = "") -> str:
    """Return the few lines a launcher prints at the end of a run with restarts."""
    lost = f", {format_duration(run.lost_ns / 1e9)} lost" if run.lost_ns else ""
    lines = [f"{one_line(run.outcome) or 'ended'} after {_count(run.restarts, 'restart')}{lost}"]
    failed = [one for one in run.rounds if one.phases is not None]
    if len(failed) > _SHORT_ROUNDS:
        lines.append(f"  ... {len(failed) - _SHORT_ROUNDS} earlier failures")
    for one in failed[-_SHORT_ROUNDS:]:
        total = one.phases.total_ns if one.phases else None
        took = f" (running again after {format_duration(total / 1e9)})" if total else ""
        lines.append(f"  round {one.round}: {one_line(one.cause)}{took}")
    if run_dir:
        lines.append(f"  more: undaunted report {printable(run_dir)}")
    return "\n".join(lines)


def plain(lines: Sequence[Line]) -> str:
    """Return lines as text without styles, each with its line feed."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _header(run: RunSummary) -> Iterator[Line]:
    outcome = run.outcome.replace("_", " ") or "no end recorded: it still runs, or was killed"
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    name = f"run {run.run_id}" if run.run_id else "run of unknown name"
    yield [
        (one_line(name), "bold"),
        (f" on {one_line(run.node)}: " if run.node else ": ", ""),
        (one_line(outcome), _STYLES.get(run.outcome, "yellow")),
        (code, ""),
    ]
    if run.reason:
        yield [("reason:   ", "dim"), (one_line(run.reason), "")]
    if run.argv:
        ranks = f" ({_count(run.nproc_per_node, 'rank')} on this node)"
        yield [("program:  ", "dim"), (one_line(" ".join(run.argv), longest=200) + ranks, "")]
    if run.started_wall is not None:
        took = "" if run.duration_ns is None else f", took {format_duration(run.duration_ns / 1e9)}"
        yield [("started:  ", "dim"), (_utc(run.started_wall) + took, "")]
    yield [("restarts: ", "dim"), (_restarts(run), "")]


def _restarts(run: RunSummary) -> str:
    text = f"{run.restarts} of {run.max_restarts}"
    if run.restarts > run.untimed_restarts:
        text += f", {format_duration(run.lost_ns / 1e9)} lost"
    if run.untimed_restarts:
        text += f" ({run.untimed_restarts} of unknown duration)"
    return text


def _round(one: RoundSummary, width: int | None) -> Iterator[Line]:
    took = "-" if one.duration_ns is None else format_duration(one.duration_ns / 1e9)
    outcome = one.outcome or "no end recorded"
    yield [
        (f"round {one.round:<3}", "bold"),
        (f"{took}, {one_line(one.worker_start) or 'no'} start, ", ""),
        (one_line(outcome), _STYLES.get(one.outcome, "yellow")),
    ]
    if one.cause and one.outcome != "finished":
        for part in _wrap(one_line(one.cause, longest=2000), width):
            yield [(_INDENT + part, "")]
    if one.stacks:
        yield [(f"{_INDENT}stacks: ", "dim"), (printable(one.stacks), "")]


def _wrap(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text]
    # Words are not broken: a path must stay one piece to be copied.
    return textwrap.wrap(
        text,
        max(20, width - len(_INDENT)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _restart_table(run: RunSummary, width: int | None) -> Iterator[Line]:
    failed = [(one.round, one.phases) for one in run.rounds if one.phases is not None]
    rows = [[str(number), *_cells(phases)] for number, phases in failed]
    titles = ["after round", *(column.title for column in _COLUMNS)]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    yield [("restarts, milliseconds", "bold")]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        for row in rows:
            pairs = zip(titles[1:], row[1:], strict=True)
            said = ", ".join(f"{title} {cell}" for title, cell in pairs)
            yield [(f"round {row[0]}: {said}", "")]
    else:
        yield [(_row(titles, widths), "dim")]
        for row in rows:
            yield [(_row(row, widths), "")]
    for part in _wrap(_LEGEND, width):
        yield [(part, "dim")]


def _cells(phases: Phases) -> list[str]:
    return [_milliseconds(getattr(phases, column.field)) for column in _COLUMNS]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _milliseconds(ns: int | None) -> str:
    if ns is None:
        return "-"
    ms = ns / 1e6
    return f"{ms:.1f}" if ms < 9.95 else f"{ms:.0f}"


def _details(one: RoundSummary) -> Iterator[Line]:
    yield [(f"{_INDENT}ranks: ", "dim"), (f"{format_ranks(one.ranks)} of {one.world_size}", "")]
    if one.iterations:
        steps = ", ".join(map(str, one.iterations))
        yield [(f"{_INDENT}first iteration: ", "dim"), (steps, "")]
    verdict = one.verdict
    if verdict is not None and verdict.waiting:
        yield [(f"{_INDENT}waiting for it: ranks ", "dim"), (format_ranks(verdict.waiting), "")]
    if verdict is not None and verdict.frame:
        yield [(f"{_INDENT}at: ", "dim"), (one_line(verdict.frame), "")]
    for exited in one.exits:
        yield [(f"{_INDENT}{_exit(exited)}", "")]
    if verdict is not None and verdict.traceback:
        for line in printable(verdict.traceback).splitlines():
            yield [(f"{_INDENT}  {line}", "dim")]


def _exit(exited: RankExited) -> str:
    how = one_line(exited.signal) or f"exit code {exited.exit_code}"
    told = ", told to stop" if exited.by_us else ""
    return f"rank {exited.rank} (pid {exited.pid}): {how}{told}"


def _phase_list(phases: Phases) -> Iterator[Line]:
    for column in _COLUMNS:
        cell = _milliseconds(getattr(phases, column.field))
        yield [(f"{_INDENT}{column.title:<9}", "dim"), (cell if cell == "-" else f"{cell} ms", "")]


def _utc(wall: float) -> str:
    try:
        when = datetime.fromtimestamp(wall, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
