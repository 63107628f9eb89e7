"""The variation of results from one run of a step to the next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from undaunted.base import torch_ranks
from undaunted.training.rerun.difference import difference
from undaunted.training.rerun.machine import RerunStateMachine, copied
from undaunted.training.rerun.table import RerunMode, RerunState, Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LOG = logging.getLogger("undaunted")
_SECOND_RUNS = (RerunState.RERUNNING_IN_PLACE, RerunState.RERUNNING_FROM_CHECKPOINT)
_PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))


class QuickStats:
    """Counts zeros, and keeps up to ``max_size`` other numbers, the newest ones.

    Args:
        max_size: of the numbers kept.
    """

    def __init__(self, max_size: int = 100_000) -> None:
        self.max_size = max_size
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.samples: list[float] = []
        self.pos = 0  # of the oldest one, which is replaced next
        self.zero_cnt = 0
        self.max = 0.0

    def record(self, data: float) -> None:
        """Add a number."""
        if data == 0.0:
            self.zero_cnt += 1
            return
        if len(self.samples) < self.max_size:
            self.samples.append(data)
        else:
            self.samples[self.pos] = data
            self.pos = (self.pos + 1) % self.max_size
        self.max = max(self.max, data)

    def combine(self, others: Iterable[QuickStats]) -> None:
        """Add what others have."""
        for other in others:
            self.zero_cnt += other.zero_cnt
            for data in other.samples:
                self.record(data)
            self.max = max(self.max, other.max)

    def state(self) -> dict[str, Any]:
        """Return what is in it, for another process."""
        return {"samples": self.samples, "zeros": self.zero_cnt, "max": self.max}

    @classmethod
    def of(cls, state: dict[str, Any]) -> QuickStats:
        """Return what another process has."""
        stats = cls()
        stats.zero_cnt, stats.max = int(state["zeros"]), float(state["max"])
        stats.samples = [float(data) for data in state["samples"]]
        return stats

    def print_stats(self) -> str:
        """Return all of it in a line."""
        zeros, samples = self.zero_cnt, sorted(self.samples)
        if not samples:
            return f"{zeros:,} samples, all identical"
        total = zeros + len(samples)
        parts = [f"avg= {sum(samples) / total:.3E}"]
        for name, share in _PERCENTILES:
            place = int(share * total)
            parts.append(
                f"{name}= " + ("0.0" if place < zeros else f"{samples[place - zeros]:.3E}")
            )
        variability = ", ".join([*parts, f"max: {self.max:.3E}"])
        return f"{total:,}/{zeros:,} total/identical samples, rel. variability: {variability}"


class StatisticsMachine(RerunStateMachine):
    """In mode ``REPORT_DETERMINISM_STATS``, runs each step twice and says how results differ."""

    REPORTING_INTERVAL_ITERATIONS = 2

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._results: dict[tuple[str, int], Any] = {}  # of the first of two runs
        self._stats: dict[str, QuickStats] = {}

    def should_run_forward_backward(self, data_iterator: Any = None) -> bool:
        """Return whether to run forward and backward pass (again). Ask it in a ``while``."""
        if self._reports and self.state in _SECOND_RUNS:
            self._report()
            self.abandon()
            return False
        return super().should_run_forward_backward(data_iterator)

    def abandon(self) -> None:
        """A step was left: the next one begins as any."""
        super().abandon()
        self._results.clear()

    def validate_result(
        self,
        result: Any,
        rejection_func: Callable[[Any], Any],
        message: str = "",
        comparison_func: Callable[[Any, Any], float] | None = None,
        tolerance: float = 0.0,
        fatal: bool = True,
    ) -> None:
        """Check a result, or see how much it varies; see `RerunStateMachine`."""
        if not self._reports:
            super().validate_result(
                result, rejection_func, message, comparison_func, tolerance, fatal
            )
            return
        check = message, self._number(message)
        if self.state is RerunState.INITIAL_RUN:
            self._results[check] = copied(result)
            self._wishes.add(Wish.RERUN)
        elif self.state is RerunState.RERUNNING_IN_PLACE and check in self._results:
            varies = (comparison_func or difference)(self._results[check], result)
            self._stats.setdefault(message, QuickStats()).record(varies)

    @property
    def _reports(self) -> bool:
        return self.get_mode() is RerunMode.REPORT_DETERMINISM_STATS

    def _report(self) -> None:
        if self.current_iteration % self.REPORTING_INTERVAL_ITERATIONS:
            return
        each = torch_ranks.gather({name: stats.state() for name, stats in self._stats.items()})
        if torch_ranks.place()[0] != 0:
            self._stats.clear()  # rank 0 has it now
            return
        for there in each[1:]:
            for message, state in there.items():
                mine = self._stats.setdefault(message, QuickStats())
                mine.combine([QuickStats.of(state)])
        _LOG.info("Stats on computation determinism in validation calls")
        for message, stats in self._stats.items():
            _LOG.info("  From validation call '%s':", message)
            _LOG.info("    %s", stats.print_stats())
