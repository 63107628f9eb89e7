"""Verdicts for a terminal: a table, and a paragraph on each fault that is not green."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from undaunted.base.text import format_duration, printable
from undaunted.chaos.output import words

if TYPE_CHECKING:
    from rich.console import Console

    from undaunted.chaos.checker.values import Colour, Finding, Verdict
    from undaunted.chaos.result import Result

# Wide enough for the table where the output is no terminal.
_WIDTH_OF_FILES = 120
# From here on there is room for the parts of the time.
_WIDTH_OF_PARTS = 110
_OF_WHICH = ", and what that was spent on, in seconds"
_COMPARED = (
    "identical: parameters, buffers, optimizer, random state and data; other state, such as an "
    "average of\nthe parameters, if it is given to undaunted.step(i, digest=...)"
)
_STYLES: dict[Colour, str] = {
    "red": "bold red",
    "yellow": "bold yellow",
    "green": "green",
    "skipped": "dim",
}
_INDENT = 4


def show(result: Result, file: TextIO) -> None:
    """Print what a chaos run has found."""
    from rich.console import Console

    width = None if file.isatty() else _WIDTH_OF_FILES
    console = Console(file=file, width=width, highlight=False, emoji=False, markup=False)
    if result.verdicts:
        _table(result, console)
    for verdict in result.verdicts:
        if verdict.skipped or verdict.findings:
            _paragraph(verdict, console)
    console.print(_last_line(result), style="bold", soft_wrap=True)


def _table(result: Result, console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= _WIDTH_OF_PARTS
    parts = ("spent on",) if wide else ()
    padding = (0, 2 if wide else 1, 0, 0)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=padding)
    for name in ("fault", "rank @ step", "verdict", "blamed", "back", *parts, "lost", "identical"):
        right = name in ("rank @ step", "back", "lost")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for verdict in result.verdicts:
        table.add_row(
            verdict.fault.id,
            words.place(verdict),
            Text(verdict.colour, _STYLES[verdict.colour]),
            words.blamed(verdict),
            words.back(verdict),
            *(words.parts(verdict) for _ in parts),
            words.number(verdict.steps_lost),
            words.identical(verdict),
        )
    console.print()
    console.print(table)
    console.print(f"\nback: until every rank stepped again{_OF_WHICH if wide else ''}; lost: steps")
    console.print(f"{_COMPARED}\n")


def _paragraph(verdict: Verdict, console: Console) -> None:
    from rich.text import Text

    head = Text(verdict.colour.upper(), _STYLES[verdict.colour])
    console.print(head.append(f"  {words.title(verdict)}", "bold"))
    if verdict.skipped:
        _indented(printable(verdict.skipped), console)
    for finding in verdict.findings:
        _indented(_said(finding), console)
    console.print()


def _indented(text: str, console: Console) -> None:
    """Print text without the blanks at the ends of lines that a padding of rich has."""
    from rich.text import Text

    for line in Text(text).wrap(console, max(console.width - _INDENT, _INDENT)):
        line.rstrip()
        console.print(Text(" " * _INDENT).append_text(line), soft_wrap=True)


def _said(finding: Finding) -> str:
    text = printable(finding.text)
    return f"{text}\n{printable(finding.remedy)}" if finding.remedy else text


def _last_line(result: Result) -> str:
    text = f"{words.summary(result)}; seed {result.seed}, took {format_duration(result.seconds)}"
    if result.directory:
        text += f", runs in {result.directory}"
        if result.checkpoint_bytes:
            text += f" with {words.size(result.checkpoint_bytes)} of checkpoints"
    return printable(text)
