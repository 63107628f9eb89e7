"""The text on the screen: from one moment of a job, and its size, to lines. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.console import cut, width_of
from undaunted.base.text import format_duration, one_line
from undaunted.journal.job.render import percent
from undaunted.top.table import room_for_notes, style_of, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.base.console import Line
    from undaunted.top.model import Job
    from undaunted.top.notes import Note
    from undaunted.top.ranks import Rank

_PROBLEMS = 3
_ATTENTION = 3
_LEAST_NOTES = 3
_SNAPSHOT_NOTES = 10
_ROOMY = 16  # lines; with less the program is not named
_BETWEEN = "   "

AUTOMATIC = "automatic"


def _first_those_to_look_at(row: Rank) -> tuple[object, ...]:
    return (not row.suspect, -(row.slow or 0.0), not row.note, -(row.step_s or 0.0), row.rank)


SORTS: dict[str, Callable[[Rank], tuple[object, ...]]] = {
    AUTOMATIC: _first_those_to_look_at,  # where not all fit, else by rank
    "rank": lambda row: (row.rank, row.node),
    "iteration": lambda row: (-1 if row.iteration is None else row.iteration, row.rank),
    "step": lambda row: (-(row.step_s or 0.0), row.rank),
    "silent": lambda row: (-(row.silent_s or 0.0), row.rank),
}


@dataclass(slots=True)
class Choice:
    """The choice of the user.

    Attributes:
        sort: one of `SORTS`.
        offset: how many ranks are above the first one shown.
        paused: the screen stands still.
        loading: part of the journals, 0 to 1, that was read; None = all.
    """

    sort: str = AUTOMATIC
    offset: int = 0
    paused: bool = False
    loading: float | None = None


def snapshot(job: Job) -> list[Line]:
    """Return everything about a moment, in lines of any length."""
    rows = sorted(job.ranks, key=SORTS["rank"])
    lines = [*_head(job, None), *_problems(job, None, len(job.problems))]
    if rows:
        lines += [[], *table(rows, None, several_nodes=len(job.nodes) > 1)]
    if job.notes:
        lines += [[], *_notes(job, job.notes[-_SNAPSHOT_NOTES:], None)]
    return lines


def screen(job: Job, choice: Choice, width: int, height: int) -> tuple[list[Line], int]:
    """Return the lines of a screen, and how many ranks it shows.

    Args:
        job: the moment.
        choice: what is chosen; an offset that is too large is made smaller.
        width: columns.
        height: lines; no more are returned.
    """
    top = [*_head(job, width, choice, short=height < _ROOMY), *_problems(job, width, _PROBLEMS), []]
    foot = _foot(choice, width)
    room = height - len(top) - len(foot) - 1  # the line of titles
    several = len(job.nodes) > 1
    attention = _attention(job, width, several_nodes=several)
    rows, notes = _divide(job, room - (len(attention) + 1 if attention else 0))
    shown, hidden = _page_of(job, choice, rows)
    body = table(shown, width, several_nodes=several) if job.ranks else []
    if hidden:
        body.append([(cut(hidden, width), "dim")])
    tail = [*attention, *_notes(job, job.notes[len(job.notes) - notes :], width)]
    lines = [*top, *body, *([[]] if tail else []), *tail]
    lines = lines[: max(0, height - len(foot))]
    blank: list[Line] = [[] for _ in range(height - len(foot) - len(lines))]
    return [*lines, *blank, *foot][:height], max(1, rows)


def _divide(job: Job, room: int) -> tuple[int, int]:
    """Divide lines between ranks and notes, each with a line in front of it or behind it."""
    notes = min(len(job.notes), max(_LEAST_NOTES, room // 4))
    if room - notes - 1 < min(_LEAST_NOTES, len(job.ranks)):
        notes = 0  # hardly any room: the ranks come first
    rows = room - (notes + 1 if notes else 0)
    if len(job.ranks) > rows:
        rows -= 1  # for the line that says how many are not shown
    else:
        rows = len(job.ranks)
        notes = min(len(job.notes), max(0, room - rows - 1))
    return max(1, rows), notes


def _page_of(job: Job, choice: Choice, rows: int) -> tuple[list[Rank], str]:
    """Return the ranks shown, and the line about the others."""
    fits = len(job.ranks) <= rows
    key = SORTS["rank" if fits and choice.sort == AUTOMATIC else choice.sort]
    choice.offset = max(0, min(choice.offset, len(job.ranks) - rows))
    order = sorted(job.ranks, key=key)
    shown = order[choice.offset : choice.offset + rows]
    hidden = len(order) - len(shown)
    if not hidden:
        return shown, ""
    above = f", {choice.offset} of them above" if choice.offset else ""
    return shown, f"{hidden} of {len(order)} ranks are not shown{above}"


# --- parts ----------------------------------------------------------------------------------------


def _head(
    job: Job, width: int | None, choice: Choice | None = None, *, short: bool = False
) -> list[Line]:
    name = one_line(job.run_id) or one_line(job.run_dir)
    program = one_line(" ".join(job.argv), 60)
    clock = time.strftime("%H:%M:%S", time.localtime(job.wall))
    if choice is not None and choice.paused:
        clock = f"paused at {clock}"
    state = one_line(job.state)
    room = None if width is None else max(0, width - width_of(clock) - 1)
    left = cut(f"{name}: {state}", room)
    split = min(len(left), len(name) + 2)
    title: Line = [(left[:split], "bold"), (left[split:], job.style)]
    blanks = _BETWEEN if room is None else " " * (room - width_of(left) + 1)
    title.append((blanks + (clock if width is None else cut(clock, width)), ""))
    loading = choice.loading if choice is not None else None
    lines = [title, *_wrapped(_facts(job, loading), width)]
    if program and not short:
        lines.append([(cut(program, width), "dim")])
    return lines


def _facts(job: Job, loading: float | None) -> list[str]:
    facts = []
    if loading is not None:
        facts.append(f"reading the journal: {percent(loading)}")
    if job.max_restarts is not None:
        facts.append(f"restarts {job.restarts} of {job.max_restarts}")
    if job.inprocess_restarts:
        facts.append(f"in-process {job.inprocess_restarts}")
    if job.goodput is not None:
        facts.append(f"goodput {percent(job.goodput)}")
    if job.iteration is not None:
        facts.append(f"iteration {job.iteration}")
    if job.ranks:
        of = f" of {job.world_size}" if job.world_size > len(job.ranks) else ""
        nodes = f" on {len(job.nodes)} nodes" if len(job.nodes) > 1 else ""
        facts.append(f"{len(job.ranks)}{of} rank{'s' if len(job.ranks) != 1 else ''}{nodes}")
    if job.running_s is not None:
        facts.append(f"time {format_duration(job.running_s)}")
    if job.round > 0 and job.round_s is not None:
        facts.append(f"this round {format_duration(job.round_s)}")
    return facts


def _wrapped(facts: Sequence[str], width: int | None) -> list[Line]:
    """Put facts side by side, in as many lines as it takes."""
    lines: list[str] = []
    for fact in facts:
        if lines and (width is None or len(lines[-1]) + len(_BETWEEN) + len(fact) <= width):
            lines[-1] += _BETWEEN + fact
        else:
            lines.append(fact)
    return [[(cut(line, width), "")] for line in lines]


def _problems(job: Job, width: int | None, most: int) -> list[Line]:
    return [[(cut(one_line(text), width), "yellow")] for text in job.problems[:most]]


def _attention(job: Job, width: int, *, several_nodes: bool) -> list[Line]:
    """The notes of the ranks to look at that the table has no room for."""
    flagged = [row for row in job.ranks if row.suspect or row.slow is not None]
    if not flagged:
        return []
    room = room_for_notes(job.ranks, width, several_nodes=several_nodes)
    flagged = [row for row in flagged if width_of(one_line(row.note)) > room]
    flagged.sort(key=_first_those_to_look_at)
    texts = [(one_line(f"rank {row.rank}: {row.note}"), style_of(row)) for row in flagged]
    return [[(cut(text, width), style)] for text, style in texts[:_ATTENTION]]


def _notes(job: Job, notes: Sequence[Note], width: int | None) -> list[Line]:
    lines: list[Line] = []
    for note in notes:
        clock = time.strftime("%H:%M:%S", time.localtime(note.wall))
        where = f" {one_line(note.node)}:" if note.node and len(job.nodes) > 1 else ""
        room = None if width is None else width - len(clock) - 1
        text = cut(f"{where} {note.text}".lstrip(), room)
        lines.append([(cut(f"{clock} ", width), "dim"), (text, note.style)])
    return lines


def _foot(choice: Choice, width: int) -> list[Line]:
    pause = "go on" if choice.paused else "pause"
    keys = f"q quit   p {pause}   s sort: {choice.sort}   arrows, PgUp, PgDn scroll"
    return [[(cut(keys, width), "dim")]]
