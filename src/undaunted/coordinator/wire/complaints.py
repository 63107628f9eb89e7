"""Lines about what strangers do wrong, without letting strangers fill the log. Pure."""

from __future__ import annotations

from undaunted.base.text import format_duration


class Complaints:
    """Lets some lines through in each window of time and counts the others.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self, lines: int = 5, window_s: float = 60.0) -> None:
        """Nothing has been said.

        Args:
            lines: how many are let through in a window, which begins with the first of them.
            window_s: its length, seconds.
        """
        self._lines = lines
        self._window_s = window_s
        self._end = float("-inf")  # of the window
        self._said = 0
        self._counted = 0
        self._last = ""

    def note(self, text: str, now_s: float) -> list[str]:
        """Take in a complaint; return the lines to say now."""
        due = self.flush(now_s) if now_s >= self._end else []
        if not due and now_s >= self._end:
            self._end = now_s + self._window_s
            self._said = 0
        if self._said < self._lines:
            self._said += 1
            return [*due, text]
        self._counted += 1
        self._last = text
        return due

    def due_s(self) -> float | None:
        """Return when `flush` has something to say, None = no complaint has been held back."""
        return self._end if self._counted else None

    def flush(self, now_s: float) -> list[str]:
        """Return the line about what was held back, if there is any. It begins a new window."""
        if not self._counted:
            return []
        line = (
            f"{self._counted} more of these within {format_duration(self._window_s)}, "
            f"the last: {self._last}"
        )
        self._end = now_s + self._window_s
        self._said = 1
        self._counted = 0
        return [line]
