"""What `undaunted doctor` prints: lines with colours, plain lines, or JSON."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Protocol

from undaunted.base.streams import take_any_text
from undaunted.cli.command import UsageError, printing

if TYPE_CHECKING:
    from undaunted.doctor.report import Line


class Render(Protocol):
    """Makes lines for a terminal with so many columns, None = for none."""

    def __call__(self, *, width: int | None = None) -> list[Line]:
        """Return the lines."""


def show(value: object, render: Render, *, as_json: bool) -> None:
    """Print a value as JSON, or what ``render`` makes of it; a pager may end before."""
    take_any_text(for_programs=as_json)
    try:
        with printing():
            if as_json:
                import msgspec

                print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
            else:
                _print(render)
    except UsageError as error:
        print(f"undaunted doctor: {error}", file=sys.stderr)


def _print(render: Render) -> None:
    if not sys.stdout.isatty():
        sys.stdout.write("".join(f"{_plain(line)}\n" for line in render()))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in render(width=shutil.get_terminal_size().columns):
        console.print(Text.assemble(*line), soft_wrap=True)


def _plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()
