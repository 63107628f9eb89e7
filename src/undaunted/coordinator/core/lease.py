"""For how long a follower may count on its leader. Times are of the follower's clock, in ns."""

from __future__ import annotations

from dataclasses import dataclass

_NS = 1_000_000_000


@dataclass(slots=True)
class Lease:
    """Of one follower.

    Attributes:
        seconds: how long it is.
        opened_ns: when the connection was made, and the follower introduced itself.
        heard_ns: last word of the leader.
        sent_ns: when the last message was sent that the leader has answered. What the leader has
            heard of this follower is not older, however long its answers were under way.
    """

    seconds: float
    opened_ns: int = 0
    heard_ns: int = 0
    sent_ns: int = 0

    def welcomed(self, seconds: float, now: int) -> None:
        """A leader has answered the introduction."""
        self.seconds, self.heard_ns, self.sent_ns = seconds, now, self.opened_ns

    def answered(self, sent_ns: int) -> None:
        """The leader has answered what was sent then."""
        self.sent_ns = max(self.sent_ns, sent_ns)

    def left_s(self, since_ns: int, now: int) -> float:
        """How much of a lease is left that has begun then."""
        return self.seconds - (now - since_ns) / _NS

    @property
    def until_ns(self) -> int:
        """When it is over."""
        return self.heard_ns + round(self.seconds * _NS)

    def alone_until_ns(self, since_ns: int, away_timeout_s: float) -> int:
        """Until when ranks go on without a leader that is missed since then, if no other can come.

        Not longer than the leader expects who knows only what it has heard.
        """
        since_ns = min(since_ns, self.sent_ns + round(self.seconds * _NS))
        return since_ns + round(away_timeout_s * _NS)
