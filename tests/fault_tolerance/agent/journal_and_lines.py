"""In place of the journal and of what shows lines: keeps both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from undaunted.fault_tolerance.agent.scribe import Scribe
from undaunted.fault_tolerance.output.messages import Messages
from undaunted.journal.writer import JournalWriter

if TYPE_CHECKING:
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.events import Event

T = TypeVar("T")


class Kept:
    """Events that were recorded, and lines that were said."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lines: list[str] = []

    def record(self, event: Event) -> None:
        self.events.append(event)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def all(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


class OpenScribe(Scribe):
    """A scribe with a journal and lines of its own."""

    def __init__(self, config: RunConfig) -> None:
        path = Path(config.run_dir, f"journal-{config.node}.jsonl")
        self.messages = Messages()
        journal = JournalWriter(path, node=config.node, version="test", say=self.messages.say)
        super().__init__(config, journal, self.messages)

    def close(self) -> None:
        self.journal.close(10)
        self.messages.close()
