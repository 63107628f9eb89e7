"""A line of the launcher on its standard error: for people, or for programs (--log-format json)."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import msgspec

from undaunted.base.text import printable
from undaunted.logs.stamps import stamp

# Levels as in `logging`, which the launcher does not import.
INFO = 20
WARNING = 30
ERROR = 40
_NAMES = {INFO: "info", WARNING: "warning", ERROR: "error"}


class OwnLine(msgspec.Struct):
    """What a line of JSON holds.

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
    """How lines of one launcher look.

    Attributes:
        name: ``text`` or ``json``.
        node: of this launcher.
    """

    name: str = "text"
    node: str = ""

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
        return ("[undaunted] " if prefix else "") + printable(text) + "\n"

    def show(self, text: str, *, level: int = WARNING) -> None:
        """Print a line where nothing else writes: before and after the agent."""
        sys.stderr.write(self.line(text, level=level))
        sys.stderr.flush()


TEXT = LineFormat()
