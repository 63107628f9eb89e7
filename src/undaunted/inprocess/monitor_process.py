"""The process that watches a rank, as an object in the rank."""

from __future__ import annotations

from undaunted.base import process


class MonitorProcess:
    """A rank's guard, see `undaunted.inprocess.guard`; under `undaunted run`, the agent.

    Made by `CallWrapper`. The object only describes the process, and sends nothing to it.

    Attributes:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = process.start_time(pid)

    def is_alive(self) -> bool:
        """Return whether the process runs. If it does not, the rank soon leaves the call."""
        found = self._stat()
        return found is not None and not found.exiting

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the process."""
        found = self._stat()
        return found is not None and found.state == "T"

    def _stat(self) -> process.Stat | None:
        """Return what the kernel says about it; None = it has ended."""
        found = process.read_stat(self.pid)
        return found if found is not None and found.start_time == self._started else None
