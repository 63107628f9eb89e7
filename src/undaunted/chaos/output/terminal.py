"""Verdicts for a terminal: a table, and a paragraph on each fault that is not green."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from undaunted.base import console
from undaunted.base.text import format_duration, printable
from undaunted.chaos.output import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.base.console import Line
    from undaunted.chaos.checker.values import Colour, Defect, Judgement
    from undaunted.chaos.result import Result

# Wide enough for the table where the output is no terminal.
_WIDTH_OF_FILES = 120
# From here on there is room for the parts of the time.
_WIDTH_OF_PARTS = 110
_OF_WHICH = ", and what that was spent on, in seconds"
_COMPARED = (
    "identical: parameters, buffers, optimizer, random state and data; other state, such as an "
    "average of the parameters, if it is given to undaunted.step(i, digest=...)"
)
_STYLES: dict[Colour, str] = {
    "red": "bold red",
    "yellow": "bold yellow",
    "green": "green",
    "skipped": "dim",
}
_INDENT = " " * 4


def show(result: Result, file: TextIO) -> None:
    """Print what a chaos run has found."""
    width = console.columns(file) or _WIDTH_OF_FILES
    lines = _table(result, width) if result.verdicts else []
    for verdict in result.verdicts:
        if verdict.skipped or verdict.findings:
            lines += _paragraph(verdict, width)
    console.show([*lines, [(_last_line(result), "bold")]], file)


def _table(result: Result, width: int) -> list[Line]:
    wide = width >= _WIDTH_OF_PARTS
    parts = ("spent on",) if wide else ()
    heads = ("fault", "rank @ step", "verdict", "blamed", "back", *parts, "lost", "identical")
    rows: list[list[str | tuple[str, str]]] = [
        [
            verdict.fault.id,
            words.place(verdict),
            (verdict.colour, _STYLES[verdict.colour]),
            words.blamed(verdict),
            words.back(verdict),
            *(words.parts(verdict) for _ in parts),
            words.number(verdict.steps_lost),
            words.identical(verdict),
        ]
        for verdict in result.verdicts
    ]
    right = [heads.index(name) for name in ("rank @ step", "back", "lost")]
    legend = f"back: until every rank stepped again{_OF_WHICH if wide else ''}; lost: steps"
    gap = 2 if wide else 1
    lines = [[], *console.table(heads, rows, right=right, width=width, gap=gap), []]
    texts = [part for text in (legend, _COMPARED) for part in console.wrap(text, width)]
    return [*lines, *([(text, "")] for text in texts), []]


def _paragraph(verdict: Judgement, width: int) -> Iterator[Line]:
    colour = (verdict.colour.upper(), _STYLES[verdict.colour])
    yield [colour, (f"  {words.title(verdict)}", "bold")]
    texts = [printable(verdict.skipped)] if verdict.skipped else []
    for text in [*texts, *map(_said, verdict.findings)]:
        for line in text.splitlines():
            for part in console.wrap(line, width, len(_INDENT)):
                yield [(_INDENT + part, "")]
    yield []


def _said(finding: Defect) -> str:
    text = printable(finding.text)
    return f"{text}\n{printable(finding.remedy)}" if finding.remedy else text


def _last_line(result: Result) -> str:
    text = f"{words.summary(result)}; seed {result.seed}, took {format_duration(result.seconds)}"
    if result.directory:
        text += f", runs in {result.directory}"
        if result.checkpoint_bytes:
            text += f" with {words.size(result.checkpoint_bytes)} of checkpoints"
    return printable(text)
