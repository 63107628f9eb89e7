"""For how long a follower may count on its leader. Times are of the follower's clock, in ns."""

from __future__ import annotations

from dataclasses import dataclass

_NS = 1_000_000_000


@dataclass(slots=True)
class Lease:
    """Of one follower.

    It begins when the follower sent what the leader has answered, not when the answer was read: the
    answer may have waited for long where this process stood still. So it is over no later than the
    leader thinks.

    Attributes:
        seconds: how long it is.
        opened_ns: when the connection was made, and the follower introduced itself.
        sent_ns: when the last message was sent that the leader has answered.
    """

    seconds: float
    opened_ns: int = 0
    sent_ns: int = 0

    def welcomed(self, seconds: float) -> None:
        """A leader has answered the introduction, or leads on under another epoch."""
        self.seconds = seconds
        self.answered(self.opened_ns)

    def answered(self, sent_ns: int) -> None:
        """The leader has answered what was sent then."""
        self.sent_ns = max(self.sent_ns, sent_ns)

    def left_s(self, since_ns: int, now: int) -> float:
        """How much of a lease is left that has begun then."""
        return self.seconds - (now - since_ns) / _NS

    @property
    def until_ns(self) -> int:
        """When it is over."""
        return self.sent_ns + round(self.seconds * _NS)
