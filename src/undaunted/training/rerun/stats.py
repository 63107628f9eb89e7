"""How much results vary from one run of a step to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

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
