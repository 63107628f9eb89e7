"""Text for people: styled lines, wrapped text and tables, laid out and coloured by rich.

Lines in a pipe have no styles and no end. rich is imported where it is needed, and late: a run
starts without it.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rich.segment import Segment

Line = list[tuple[str, str]]
"""Pieces of text, each with a style that rich knows, "" for none."""

_LEAST = 20  # columns of wrapped text
_ANY = 1_000_000  # columns of a table that may be as wide as it needs


def columns(file: TextIO | None = None) -> int | None:
    """Return the width of a terminal, ``COLUMNS`` first; None where there is none."""
    return shutil.get_terminal_size().columns if (file or sys.stdout).isatty() else None


def show(lines: Iterable[Line], file: TextIO | None = None) -> None:
    """Print lines, with colours on a terminal unless ``NO_COLOR`` is set.

    The terminal breaks what is too long: words, and paths to be copied, stay whole.

    Args:
        lines: as wide as they may be.
        file: None = standard output.

    Raises:
        OSError: it cannot be written.
    """
    file = file or sys.stdout
    if not file.isatty():
        file.write(plain(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)


def plain(lines: Iterable[Line]) -> str:
    """Return lines as text without styles, each with its line feed."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def wrap(text: str, width: int | None, indent: int = 0) -> list[str]:
    """Return a text in lines; words are not broken.

    Args:
        text: any.
        width: columns of the terminal; None = one line.
        indent: columns that something else takes in each.
    """
    if width is None:
        return [text]
    room = max(_LEAST, width - indent)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)


def labelled(
    label: str, text: str, width: int | None, *, style: str = "dim", text_style: str = ""
) -> Iterator[Line]:
    """Yield a text after its label, further lines below its beginning."""
    for number, part in enumerate(wrap(text, width, len(label)) or [""]):
        yield [(" " * len(label), "") if number else (label, style), (part, text_style)]


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | tuple[str, str]]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
    gap: int = 2,
) -> list[Line]:
    """Return a table as lines, the first one with its heads.

    Args:
        heads: of the columns.
        rows: cells, each a text or a text and its style.
        right: which columns are aligned to the right.
        width: columns of the terminal, in which cells are broken that are too long; None = as many
            as needed.
        gap: blanks between columns.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for place, head in enumerate(heads):
        grid.add_column(
            Text(head),
            justify="right" if place in right else "left",
            overflow="fold",
            no_wrap=width is None,
        )
    cells = [[Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row] for row in rows]
    if width is None and cells:  # no cell is broken: one row of many lines is laid out much faster
        cells = [[Text("\n").join(column) for column in zip(*cells, strict=True)]]
    for row in cells:
        grid.add_row(*row)
    console = Console(width=_ANY if width is None else width, color_system=None)
    return [_line(segments) for segments in console.render_lines(grid, pad=False)]


def width_of(text: str) -> int:
    """Return how many columns a printable text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int | None) -> str:
    """Return the beginning of ``text`` that fits into ``width`` columns, None = all of it."""
    if width is None or width_of(text) <= width:
        return text
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1).rstrip()}~" if width > 0 else ""


def fill(text: str, width: int, right: bool = False) -> str:
    """Return ``text`` with blanks up to ``width`` columns, in front of it if ``right``."""
    blanks = " " * max(0, width - width_of(text))
    return blanks + text if right else text + blanks


def coloured(line: Line, colour: bool = True) -> str:
    """Return a line, if ``colour`` with its styles as codes for a terminal."""
    from rich.color import ColorSystem
    from rich.style import Style

    system = ColorSystem.STANDARD if colour else None
    return "".join(Style.parse(style).render(text, color_system=system) for text, style in line)


def _line(segments: Iterable[Segment]) -> Line:
    line: Line = []
    for text, style, _ in segments:
        name = "" if style is None else str(style)
        line.append((text, "" if name == "none" else name))
    while line and not line[-1][0].strip():
        line.pop()
    if line:
        line[-1] = (line[-1][0].rstrip(), line[-1][1])
    return line
