"""The processes below the agent: when is nothing of a round left?"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.fault_tolerance.agent.processes.workers import below_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.agent.processes.workers import Workers


class Tree:
    """Ends everything that belongs to a round.

    Args:
        workers: they send the signals.
        spared: processes that the agent keeps between rounds.
        empty: called once when nothing is left after `signal`.
    """

    def __init__(
        self, workers: Workers, spared: Callable[[], set[int]], empty: Callable[[], None]
    ) -> None:
        self._workers = workers
        self._spared = spared
        self._empty = empty
        self._awaited = 0  # the signal that was sent to all

    def signal(self, number: int) -> None:
        """Send ``number`` to all, and have ``empty`` called when they have ended."""
        self._awaited = number
        self._workers.signal_tree(number, spare=self._spared())
        self.look()

    def look(self) -> None:
        """After every exit: is anything left? Whoever has come since SIGKILL gets it too."""
        if not self._awaited or self._others_end_first():
            return
        if not self.left():
            self._awaited = 0
            self._empty()
        elif self._awaited == signal.SIGKILL:
            self._workers.signal_tree(signal.SIGKILL, spare=self._spared())

    def left(self) -> tuple[int, ...]:
        """Pids of all that is left of the round."""
        return tuple(sorted(below_us(self._spared())))

    def forget(self) -> None:
        """What is left is not waited for any more."""
        self._awaited = 0

    def _others_end_first(self) -> bool:
        """Whether a child has yet to end, after which all is looked at anyway.

        Looking at all processes of the machine is slow where there are thousands.
        """
        children = process.children() - self._spared()
        if self._awaited == signal.SIGKILL:
            return bool(children) and children <= self._workers.killed
        return bool(children)
