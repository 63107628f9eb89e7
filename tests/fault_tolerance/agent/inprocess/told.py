"""In place of a scribe: keeps what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.journal.events import Event


class Told:
    """In place of a scribe."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lines: list[str] = []

    def record(self, kind: type[Event], /, **fields: object) -> None:
        self.events.append(kind(t=1, **fields))  # type: ignore[arg-type]

    def say(self, text: str) -> None:
        self.lines.append(text)
