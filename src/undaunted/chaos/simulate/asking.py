"""Questions to other agents: one connection each, with a deadline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undaunted.simulation import messages as s

if TYPE_CHECKING:
    from collections.abc import Callable

    Answered = Callable[[str, Any, int], list[s.Command]]

# What a server says first: stands for its part of the handshake, which takes a living process.
READY = "ready"
DEADLINE_NS = 1_000_000_000


@dataclass(slots=True, eq=False)
class _Question:
    label: str
    node: str
    message: Any
    answered: Answered
    connection: int = 0


class Asking:
    """All questions of one process that have not been answered."""

    def __init__(self) -> None:
        self._made = 0
        self._open: dict[str, _Question] = {}  # by label
        self._connected: dict[int, _Question] = {}

    def ask(self, node: str, address: str, message: Any, answered: Answered) -> list[s.Command]:
        """Ask; ``answered`` is called with the answer, or with None at the deadline."""
        self._made += 1
        question = _Question(f"ask {self._made}", node, message, answered)
        self._open[question.label] = question
        return [
            s.Connect(question.label, address, DEADLINE_NS),
            s.SetTimer(question.label, DEADLINE_NS),
        ]

    def connected(self, event: s.Connected) -> bool:
        """Whether the connection is for a question."""
        if not event.label.startswith("ask "):
            return False
        question = self._open.get(event.label)
        if question is not None:
            question.connection = event.connection
            self._connected[event.connection] = question
        return True

    def received(self, connection: int, message: Any, now: int) -> list[s.Command] | None:
        """Take in a message; None = the connection is not for a question."""
        question = self._connected.get(connection)
        if question is None:
            return None
        if message == READY:
            return [s.Send(connection, question.message)]
        return self._end(question, message, now)

    def closed(self, connection: int, now: int) -> list[s.Command] | None:
        """Take in that a connection is gone; None = it is not for a question."""
        question = self._connected.get(connection)
        return None if question is None else self._end(question, None, now)

    def failed(self, label: str, now: int) -> list[s.Command] | None:
        """A connection could not be made, or a timer ran out; None = not for a question."""
        if not label.startswith("ask "):
            return None
        question = self._open.get(label)
        return [] if question is None else self._end(question, None, now)

    def _end(self, question: _Question, answer: Any, now: int) -> list[s.Command]:
        del self._open[question.label]
        out: list[s.Command] = [s.CancelTimer(question.label)]
        if question.connection:
            del self._connected[question.connection]
            out.append(s.Close(question.connection))
        return out + question.answered(question.node, answer, now)
