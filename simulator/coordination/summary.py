"""What many runs came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.coordination.run import Result

_SEEDS_NAMED = 8


@dataclass(slots=True)
class Summary:
    """Sums over runs; `add` each of them.

    Attributes:
        runs: how many.
        failed: seeds for which an invariant does not hold, by the name of the invariant.
    """

    runs: int = 0
    failed: dict[str, list[int]] = field(default_factory=dict)
    _faults: int = 0
    _rounds: int = 0
    _takeovers: int = 0
    _events: int = 0
    _seconds: float = 0.0
    _lost_s: list[float] = field(default_factory=list)
    _ends: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        """Take in a run."""
        self.runs += 1
        if result.problem:
            self.failed.setdefault(result.problem.partition(":")[0], []).append(result.seed)
        self._faults += len(result.faults)
        self._rounds += result.rounds
        self._takeovers += result.takeovers
        self._events += result.events
        self._seconds += result.seconds
        self._lost_s.append(result.lost_s)
        how = result.ended or "gave up"
        self._ends[f"{how} (beyond help)" if result.hopeless else how] += 1

    @property
    def failures(self) -> int:
        """Runs for which an invariant does not hold."""
        return sum(len(seeds) for seeds in self.failed.values())

    def lines(self) -> list[str]:
        """The summary, for people."""
        ends = ", ".join(f"{count} {how}" for how, count in self._ends.most_common())
        what = f"{self._faults} faults, {self._rounds} rounds, {self._takeovers} take-overs"
        lost = f"of a job, half lost up to {median(self._lost_s or [0]):.1f} s"
        lines = [
            f"runs        {self.runs}: {what}, {self._events} events",
            f"time        {self._seconds / 3600:.1f} h simulated; {lost}",
            f"jobs ended  {ends or '-'}",
            f"violations  {self.failures}",
        ]
        for invariant, seeds in sorted(self.failed.items(), key=lambda item: -len(item[1])):
            named = ", ".join(map(str, seeds[:_SEEDS_NAMED]))
            more = ", ..." if len(seeds) > _SEEDS_NAMED else ""
            lines.append(f"  {invariant}: {len(seeds)} (seeds {named}{more})")
        return lines
