"""A limit of bandwidth: a bucket that fills at the rate and may be overdrawn."""

from __future__ import annotations


class Bucket:
    """Tells how long to wait after so many bytes. Knows no clock."""

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        """Begin with a full bucket.

        Args:
            rate: bytes per second, more than 0.
            burst: how many bytes may go at once after a pause.
            now_s: of the clock that is given to :meth:`take`, seconds.
        """
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at_s = now_s

    def take(self, count: int, now_s: float) -> float:
        """Take ``count`` bytes; return how many seconds to wait before the next ones.

        Several may wait at once: what one took is counted for all that come later.
        """
        if now_s > self._at_s:
            self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
        self._level -= count
        return max(0.0, -self._level / self._rate)
