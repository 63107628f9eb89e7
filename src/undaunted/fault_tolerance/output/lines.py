"""A line of the launcher on its standard error: for people, or for programs (--log-format json)."""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple

import msgspec

from undaunted.base.text import MOST_COLUMNS, folded, printable
from undaunted.fault_tolerance.output.stamps import stamp

# Levels as in `logging`, which the launcher does not import.
INFO = 20
PROGRESS = 21  # for people at a terminal only
DONE = 25  # an end as it should be
WARNING = 30
ERROR = 40
_NAMES = {INFO: "info", PROGRESS: "info", DONE: "info", WARNING: "warning", ERROR: "error"}
_COLOURS = {PROGRESS: "2", DONE: "32", WARNING: "33", ERROR: "31"}  # dim, green, yellow, red


class OwnLine(msgspec.Struct):
    """The content of a line of JSON.

    Attributes:
        time: in UTC, as in other logs of the launcher.
        level: ``info``, ``warning`` or ``error``.
        node: of this launcher.
        rank: which one the text is about, None = no single one.
        text: one or more lines.
    """

    time: str
    level: str
    node: str
    rank: int | None
    text: str


class LineFormat(NamedTuple):
    """The look of the lines of one launcher.

    Attributes:
        name: ``text``, ``plain`` or ``json``.
        node: of this launcher.
        columns: of the terminal where somebody reads them: no line is longer, details are
            indented. 0 = it is none.
        colour: there, the level can be seen.
    """

    name: str = "text"
    node: str = ""
    columns: int = 0
    colour: bool = False

    def on(self, fd: int) -> LineFormat:
        """Return the format for a file, which may be a terminal."""
        if self.name != "text" or os.environ.get("TERM", "dumb") == "dumb" or not os.isatty(fd):
            return self
        try:
            columns = min(os.get_terminal_size(fd).columns or MOST_COLUMNS, MOST_COLUMNS)
        except OSError:
            return self
        return self._replace(columns=columns, colour=not os.environ.get("NO_COLOR"))

    def line(
        self, text: str, *, level: int = WARNING, rank: int | None = None, prefix: bool = True
    ) -> str:
        """Return ``text`` (one or more lines, no more than `printable`) with its end.

        Args:
            text: without its end.
            level: of the three above.
            rank: which one it is about, None = no single one.
            prefix: people see whose line it is.
        """
        if self.name == "json":
            known = text.encode(errors="replace").decode()  # a path may be no Unicode
            about = OwnLine(stamp(time.time()), _NAMES[level], self.node, rank, known)
            return msgspec.json.encode(about).decode() + "\n"
        shown = ("[undaunted] " if prefix else "") + printable(text)
        if not self.columns or not prefix:
            return shown + "\n"
        own = shown.split("\n")
        first, *details = own if len(own) > 1 else folded(shown, self.columns)
        if self.colour and level in _COLOURS:
            first = f"\x1b[{_COLOURS[level]}m{first}\x1b[0m"
        return "\n".join([first, *details, ""])

    def show(self, text: str, *, level: int = WARNING) -> None:
        """Print a line where nothing else writes: before and after the agent."""
        sys.stderr.write(self.line(text, level=level))
        sys.stderr.flush()


TEXT = LineFormat()
