"""Summaries as text for people: lines of styled pieces, without any terminal in sight."""

from __future__ import annotations

import textwrap
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, format_ranks, one_line, printable
from undaunted.journal.checkpoint_lines import checkpoint_lines
from undaunted.journal.tables import (
    Line,
    class_cells,
    inprocess_table,
    percent,
    phase_cells,
    restart_table,
    time_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.journal.events import RankExited
    from undaunted.journal.goodput import Times
    from undaunted.journal.summary import Phases, RoundSummary, RunSummary

STYLES = {"finished": "green", "crash": "red", "hang": "red", "spawn": "red", "failed": "red"}
INDENT = " " * 9
# How many restarts inside of processes `render_run` explains per round.
_SHORT_INPROCESS = 5

NO_END = {
    True: "still runs",
    False: "killed: its launcher is gone and recorded no end",
    None: "no end recorded: it still runs, or was killed",
}


def render_run(run: RunSummary, *, width: int | None = None) -> list[Line]:
    """Return the report of one launch.

    Args:
        run: the summary.
        width: columns of the terminal; None leaves long lines alone.
    """
    lines = list(_header(run, width))
    lines.append([])
    for one in run.rounds:
        lines.extend(_round(one, width))
        lines.extend(_inprocess(one, width, most=_SHORT_INPROCESS))
    if any(one.phases is not None for one in run.rounds):
        lines.append([])
        lines.extend(restart_table(run, width))
    if any(one.inprocess for one in run.rounds):
        lines.append([])
        lines.extend(inprocess_table(run, width))
    if run.times.total_ns and run.rounds:
        lines.append([])
        lines.extend(time_table(run, width))
    for note in run.notes:
        lines.extend(labelled("note: ", one_line(note), width, style="yellow"))
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
        lines.extend(_inprocess(one, width, most=len(one.inprocess)))
        if one.phases is not None:
            lines.extend(_phase_list(one.phases))
        lines.extend(_class_list(one.times))
    return lines


def plain(lines: Sequence[Line]) -> str:
    """Return lines as text without styles, each with its line feed."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _header(run: RunSummary, width: int | None) -> Iterator[Line]:
    outcome = run.outcome.replace("_", " ") or NO_END[run.running]
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    name = f"run {run.run_id}" if run.run_id else "run of unknown name"
    yield [
        (one_line(name), "bold"),
        (f" on {one_line(run.node)}: " if run.node else ": ", ""),
        (one_line(outcome), STYLES.get(run.outcome, "yellow")),
        (code, ""),
        ("" if run.goodput is None else f", goodput {percent(run.goodput)}", ""),
    ]
    if run.reason:
        yield from labelled("reason:   ", one_line(run.reason), width)
    if run.argv:
        ranks = f" ({count(run.nproc_per_node, 'rank')} on this node)"
        program = one_line(" ".join(run.argv), longest=200) + ranks
        yield from labelled("program:  ", program, width)
    if run.started_wall is not None:
        if run.duration_ns is not None:
            took = f", took {format_duration(run.duration_ns / 1e9)}"
        else:
            took = told_for(run.times.total_ns)
        yield [("started:  ", "dim"), (utc(run.started_wall) + took, "")]
    yield [("restarts: ", "dim"), (_restarts(run), "")]
    if run.checkpoints is not None:
        yield from checkpoint_lines(run.checkpoints)


def told_for(ns: int) -> str:
    """Return how much a journal without an end tells: goodput and times are of that alone."""
    return f", told up to {format_duration(ns / 1e9)} later" if ns else ""


def _restarts(run: RunSummary) -> str:
    text = f"{run.restarts} of {run.max_restarts}"
    if run.restarts > run.untimed_restarts:
        text += f", {format_duration(run.lost_ns / 1e9)} lost"
    if run.untimed_restarts:
        text += f" ({run.untimed_restarts} of unknown duration)"
    inside = [each for one in run.rounds for each in one.inprocess]
    if inside:
        lost_s = sum(each.total_ns or 0 for each in inside) / 1e9
        text += f"; {len(inside)} in-process, {format_duration(lost_s)} lost"
    return text


def _round(one: RoundSummary, width: int | None) -> Iterator[Line]:
    took = "-" if one.duration_ns is None else format_duration(one.duration_ns / 1e9)
    outcome = one.outcome or "no end recorded"
    yield [
        (f"round {one.round:<2} ", "bold"),
        (f"{took}, {one_line(one.worker_start) or 'no'} start, {iterations(one)}", ""),
        (one_line(outcome), STYLES.get(one.outcome, "yellow")),
    ]
    if one.cause and one.outcome != "finished":
        cause = one.cause.removesuffix(f"; stacks: {one.stacks}")  # they have their own line
        for part in wrap(one_line(cause, longest=2000), width):
            yield [(INDENT + part, "")]
    if one.stacks:
        yield [(f"{INDENT}stacks: ", "dim"), (printable(one.stacks), "")]


def _inprocess(one: RoundSummary, width: int | None, *, most: int) -> Iterator[Line]:
    """Yield why a function was restarted, for the last ``most`` times."""
    if len(one.inprocess) > most:
        yield [(f"{INDENT}... {len(one.inprocess) - most} earlier in-process restarts", "dim")]
    for restart in one.inprocess[max(0, len(one.inprocess) - most) :]:
        ranks = count(restart.members, "rank") if restart.members else "no rank"
        lost = f" (without {format_ranks(restart.lost)})" if restart.lost else ""
        cause = restart.causes[0] if restart.causes else "it was stopped"
        text = f"in-process restart {restart.epoch}: {ranks}{lost} again after {cause}"
        for part in wrap(one_line(text, longest=400), width):
            yield [(INDENT + part, "")]


def iterations(one: RoundSummary) -> str:
    """Return which iterations a round began."""
    if not one.iterations or one.last_iteration is None:
        return ""
    return f"iterations {one.iterations[0]} to {one.last_iteration}, "


def labelled(label: str, text: str, width: int | None, *, style: str = "dim") -> Iterator[Line]:
    """Yield a text after its label, further lines below its beginning."""
    for number, part in enumerate(wrap(text, width, len(label))):
        yield [(" " * len(label), "") if number else (label, style), (part, "")]


def wrap(text: str, width: int | None, indent: int = len(INDENT)) -> list[str]:
    """Return a text in lines of a terminal, one line if its width is None."""
    if width is None:
        return [text]
    # Words are not broken: a path must stay one piece to be copied.
    return textwrap.wrap(
        text,
        max(20, width - indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _details(one: RoundSummary) -> Iterator[Line]:
    yield [(f"{INDENT}ranks: ", "dim"), (f"{format_ranks(one.ranks)} of {one.world_size}", "")]
    if one.iterations:
        steps = ", ".join(map(str, one.iterations))
        last = "" if one.last_iteration is None else f", reached: {one.last_iteration}"
        yield [(f"{INDENT}first iteration: ", "dim"), (steps + last, "")]
    verdict = one.verdict
    if verdict is not None and verdict.waiting:
        yield [(f"{INDENT}waiting for it: ranks ", "dim"), (format_ranks(verdict.waiting), "")]
    if verdict is not None and verdict.frame:
        yield [(f"{INDENT}at: ", "dim"), (one_line(verdict.frame), "")]
    if verdict is not None and verdict.distribution:
        yield [(f"{INDENT}before: ", "dim"), (one_line(verdict.distribution), "")]
    for exited in one.exits:
        yield [(f"{INDENT}{_exit(exited)}", "")]
    if verdict is not None and verdict.traceback:
        for line in printable(verdict.traceback).splitlines():
            yield [(f"{INDENT}  {line}", "dim")]


def _exit(exited: RankExited) -> str:
    how = one_line(exited.signal) or f"exit code {exited.exit_code}"
    told = ", told to stop" if exited.by_us else ""
    return f"rank {exited.rank} (pid {exited.pid}): {how}{told}"


def _phase_list(phases: Phases) -> Iterator[Line]:
    yield [(f"{INDENT}the restart:", "dim")]
    for column, cell in phase_cells(phases):
        took = cell if cell == "-" else f"{cell} ms"
        yield [
            (f"{INDENT}  {column.title:<11}", "dim"),
            (f"{took:<8} ", ""),
            (column.meaning, "dim"),
        ]


def _class_list(times: Times) -> Iterator[Line]:
    yield [(f"{INDENT}where its time went:", "dim")]
    for column, cell in class_cells(times):
        yield [
            (f"{INDENT}  {column.title:<11}", "dim"),
            (f"{cell:<8} ", ""),
            (column.meaning, "dim"),
        ]


def utc(wall: float) -> str:
    """Return Unix time as a date and a time of day."""
    try:
        when = datetime.fromtimestamp(wall, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")
