"""How a writer process works."""

from __future__ import annotations

import msgspec


class WriterOptions(msgspec.Struct, frozen=True):
    """Settings of a writer process.

    Attributes:
        threads: that write blocks of a file at the same time.
        bandwidth: bytes per second that are written at most; None = no limit.
        nice: priority for the processors, -20 (first) to 19 (last).
        io_class: priority for the disk: ``best-effort`` (its lowest level), ``idle``, or None = as
            the trainer's. Only some I/O schedulers heed it.
        stall_timeout_s: a writer that has something to write and makes no progress for so long is
            killed, seconds.
    """

    threads: int = 4
    bandwidth: float | None = None
    nice: int = 10
    io_class: str | None = None
    stall_timeout_s: float = 60.0

    def check(self) -> None:
        """Raise ValueError, naming the setting, where one makes no sense."""
        from undaunted.checkpointing.files import priority

        if self.threads < 1:
            raise ValueError(f"threads={self.threads}: give 1 or more")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ValueError(
                f"bandwidth={self.bandwidth}: give bytes per second, or None for no limit"
            )
        if not self.stall_timeout_s > 0:
            raise ValueError(f"stall_timeout_s={self.stall_timeout_s}: give seconds, more than 0")
        priority.check(self.nice, self.io_class)
