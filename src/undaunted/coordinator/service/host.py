"""What a node listens for: followers of the leader it may be, and questions of other members."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from undaunted.coordinator import protocol as p

if TYPE_CHECKING:
    from undaunted.coordinator.service.following import Following
    from undaunted.coordinator.service.leading import Leading
    from undaunted.coordinator.wire.connection import Connection

# Followers and members that ask say so at once.
FIRST_MESSAGE_S = 5.0


class Host:
    """Handler of a server's connections.

    Attributes:
        leading: the leader that is served here, None = none.
        following: of this node; None = this is no node, but a coordinator alone.
    """

    def __init__(self) -> None:
        self._silent: dict[Connection, asyncio.TimerHandle] = {}
        self.leading: Leading | None = None
        self.following: Following | None = None

    def opened(self, connection: Connection) -> None:
        """Wait for the first message, not for ever."""
        late = f"it has not said what it wants within {FIRST_MESSAGE_S:g} s"
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(FIRST_MESSAGE_S, connection.drop, late)

    def received(self, connection: Connection, message: Any) -> None:
        """Pass a message on to whom it is for."""
        self._has_spoken(connection)
        if isinstance(message, p.Miss | p.Claim):
            self._asked(connection, message)
        elif self.leading is not None:
            self.leading.received(connection, message)
        else:
            reason = "this node does not lead the job"
            connection.send(p.Refused(reason=reason, leader=self._leader()))
            connection.close(reason)

    def closed(self, connection: Connection, reason: str) -> None:
        """Tell the leader."""
        self._has_spoken(connection)
        if self.leading is not None:
            self.leading.closed(connection, reason)

    def _has_spoken(self, connection: Connection) -> None:
        if (timer := self._silent.pop(connection, None)) is not None:
            timer.cancel()

    def _asked(self, connection: Connection, question: p.Miss | p.Claim) -> None:
        if self.following is not None:
            self.following.asked(connection, question)
        else:
            connection.close("there is nobody to ask here")

    def _leader(self) -> str:
        return "" if self.following is None else self.following.follower.leader
