"""Whether a writer stands still; pure."""

from __future__ import annotations

# What seems to stand still gets so long again: perhaps it was all of the job that was stopped, and
# the trainer runs first. Seconds.
CONFIRM_S = 1.0


class Standstill:
    """Judges by when there was progress last. All times are seconds of one clock."""

    def __init__(self, timeout_s: float) -> None:
        """Nothing is to do yet.

        Args:
            timeout_s: how long a writer that has something to do may make no progress.
        """
        self._timeout_s = timeout_s
        self._since_s = 0.0
        self._suspect_s: float | None = None  # when it seemed to stand still

    def begin(self, now_s: float) -> None:
        """There is something to do again."""
        self._since_s = now_s
        self._suspect_s = None

    def answered(self) -> None:
        """It has said something, so it does not stand still."""
        self._suspect_s = None

    def patience_s(self, now_s: float, progress_s: float) -> float:
        """Return in how many seconds to judge."""
        if self._suspect_s is not None:
            return max(0.0, self._suspect_s + CONFIRM_S - now_s)
        return max(0.0, max(self._since_s, progress_s) + self._timeout_s - now_s)

    def judge(self, now_s: float, progress_s: float) -> float | None:
        """Return for how long there was no progress if it stands still, None if it may go on.

        Args:
            now_s: the time.
            progress_s: when there was progress last, as the writer says.
        """
        silent_s = now_s - max(self._since_s, progress_s)
        if silent_s < self._timeout_s:
            self._suspect_s = None
        elif self._suspect_s is None:
            self._suspect_s = now_s
        elif now_s - self._suspect_s >= CONFIRM_S:
            return silent_s
        return None
