"""Questions: one message to another process and one back, with a deadline.

What a connection made for it would do, in a third of its events: it is refused where nobody
listens, takes a process that is not paused, and is lost in a cut. Nothing waits for a cut to heal,
since the deadline is shorter than what TCP takes to notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.virtual.messages import Answer, Answered, Ask, Asked

if TYPE_CHECKING:
    from simulator.virtual.network import Network
    from simulator.virtual.process import Running

# A connection is requested, granted, accepted and greeted, and the question follows.
_TRIPS = 5


@dataclass(slots=True, eq=False)
class _Question:
    owner: Running
    command: Ask
    deadline: int
    asked: Running | None = None
    pending: bool = True


class Questions:
    """All that have not been answered."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._at = network.schedule.at
        self._made = 0
        self._open: dict[int, _Question] = {}  # those that a process has been told

    def ask(self, owner: Running, command: Ask) -> None:
        """Put a question on its way."""
        network = self._network
        now = network.schedule.now
        question = _Question(owner, command, now + command.timeout_ns)
        self._at(now + network.delay(_TRIPS), self._arrives, question)

    def answer(self, command: Answer) -> None:
        """Put an answer on its way, if somebody waits for it."""
        question = self._open.pop(command.question, None)
        if question is not None:
            network = self._network
            arrival = network.schedule.now + network.delay()
            self._at(arrival, self._answer_arrives, (question, command.message))

    # --- on the way -----------------------------------------------------------------------------

    def _arrives(self, question: _Question) -> None:
        """It reaches its machine, on which nothing of it was seen before."""
        network, command = self._network, question.command
        here, there = question.owner.machine.name, command.address.rpartition(":")[0]
        machine = network.machines.get(there)
        if machine is None or not machine.alive or network.cut_off(here, there):
            self._expire(question)
            return
        question.asked = asked = network.listener(command.address)
        if asked is None:
            self._end(question, None)
        elif asked.paused:
            self._expire(question)
        else:
            self._made += 1
            number = self._made
            self._open[number] = question
            network.deliver(asked, Asked(number, command.message), None)
            if number in self._open:  # the process is slow, or says nothing
                self._expire(question, number)

    def _answer_arrives(self, item: tuple[_Question, Any]) -> None:
        question, message = item
        network, asked = self._network, question.asked
        now = network.schedule.now
        if now > question.deadline or (
            asked is not None and network.blocked(asked.machine.name, question.owner.machine.name)
        ):
            self._expire(question)
        else:
            self._end(question, message)

    # --- the end --------------------------------------------------------------------------------

    def _expire(self, question: _Question, number: int = 0) -> None:
        self._at(question.deadline, self._expired, (question, number))

    def _expired(self, item: tuple[_Question, int]) -> None:
        question, number = item
        self._open.pop(number, None)
        self._end(question, None)

    def _end(self, question: _Question, message: Any) -> None:
        if question.pending and question.owner.alive:
            question.pending = False
            answered = Answered(question.command.label, message)
            self._network.deliver(question.owner, answered, None)
