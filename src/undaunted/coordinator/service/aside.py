"""What is said on the connections of followers and their leader that is none of theirs.

It goes between agents and whatever runs beside the leader; nothing here knows what it means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.wire.connection import Connection


class BesideLeader(Protocol):
    """Runs beside one leader. Called on the loop; must not block."""

    def received(self, connection: Connection, aside: p.Aside) -> None:
        """A follower has said something."""

    def closed(self, connection: Connection, reason: str, *, silent: bool) -> None:
        """A connection of a follower has ended.

        Args:
            connection: over which something may have been received.
            reason: for people.
            silent: the leader or the network has ended it: the other side may live, and not know
                it.
        """

    def close(self) -> None:
        """The leader has ended, or somebody else leads now."""


class BesideFollower(Protocol):
    """Runs beside a follower. Called on the loop; must not block."""

    def linked(self, connection: Connection | None) -> None:
        """A leader is followed over this connection, perhaps another one; None = there is none."""

    def received(self, aside: p.Aside) -> None:
        """The leader that is followed has said something."""
