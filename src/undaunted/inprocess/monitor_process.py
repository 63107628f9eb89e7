"""The process that watches a rank from outside, as the rank sees it."""

from __future__ import annotations

from undaunted.base import process


class MonitorProcess:
    """A rank's guard, see `undaunted.inprocess.guard`; under `undaunted run`, the agent.

    Made by `CallWrapper`. It is told nothing through this object: what a rank shows is on its page.

    Attributes:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = process.start_time(pid)

    def is_alive(self) -> bool:
        """Whether it runs. Without it, a rank finishes its function, unguarded."""
        found = process.read_stat(self.pid)
        return found is not None and found.start_time == self._started and not found.exiting
