"""Where in a journal an event is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.lines import MAX_LINE, decode

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.journal.events import Event


def line_of(path: Path, event: Event) -> int | None:
    """Return the number of the line that holds an event, from 1; None if it is not there any more.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
            if _event_of(line) == event:
                return number
    return None


def _event_of(line: bytes) -> Event | None:
    try:
        return decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
