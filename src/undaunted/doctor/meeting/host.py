"""The host of a meeting: collects, says who is there, lays beside each other, tells all."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from undaunted.coordinator.wire.server import Server
from undaunted.doctor.meeting.compare import Member, compare
from undaunted.doctor.meeting.messages import (
    Clock,
    Everyone,
    FromGuest,
    Hello,
    Peer,
    Ping,
    Pong,
    Reached,
    Verdict,
)

if TYPE_CHECKING:
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.handshake import Terms
    from undaunted.doctor.known_issues import KnownIssues


class Host:
    """Serves one meeting. Used on one loop.

    It goes through three stages: until all are there with their clocks, until all have tried to
    reach each other, and over. Whoever leaves is not waited for any longer.
    """

    def __init__(self, address: str, terms: Terms, expected: int, issues: KnownIssues) -> None:
        """Prepare a meeting of ``expected`` nodes; nothing listens before `start`."""
        self._server = Server(address, self, terms, messages=FromGuest)
        self._server.nodes = expected
        self._expected = expected
        self._issues = issues
        self._members: dict[Connection, Member] = {}
        self._ports: dict[Connection, int] = {}
        self._waiting: set[Connection] = set()  # for their clocks, later for what they reach
        self._timer: asyncio.TimerHandle | None = None
        self._told = False  # who is there
        self._reach_s = 0.0
        self._over = False

    async def start(self, join_s: float, reach_s: float) -> None:
        """Listen.

        Args:
            join_s: how long all are waited for, seconds.
            reach_s: then, how long they have to try each other.

        Raises:
            WireError: that is not possible here, or not allowed without a token.
        """
        await self._server.start()
        self._reach_s = reach_s
        self._timer = asyncio.get_running_loop().call_later(join_s, self._begin)

    async def close(self) -> None:
        """End the meeting; what was sent is delivered."""
        if self._timer is not None:
            self._timer.cancel()
        await self._server.close("the meeting is over")

    # --- for the server -------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Wait for its hello."""

    def received(self, connection: Connection, message: Any) -> None:
        """Take in what a guest says."""
        match message:
            case Ping(sent_ns):
                got_ns = time.time_ns()
                connection.send(Pong(sent_ns, got_ns, time.time_ns()))
            case Hello(facts, port) if self._timer is not None and not self._told:
                self._members[connection] = Member(facts=facts)
                self._ports[connection] = port
                self._waiting.add(connection)
            case Clock() if connection in self._members:
                self._members[connection].clock = message
                self._done(connection)
            case Reached(unreached) if self._told and connection in self._members:
                self._members[connection].unreached = unreached
                self._done(connection)
            case _:
                connection.close("the meeting has begun without this node")

    def closed(self, connection: Connection, reason: str) -> None:  # noqa: ARG002 - as it must be
        """Do not wait for it; what it has told counts."""
        self._done(connection)

    # --- inside ---------------------------------------------------------------------------------

    def _done(self, connection: Connection) -> None:
        self._waiting.discard(connection)
        if self._waiting:
            return
        if self._told:
            self._end()
        elif len(self._members) >= self._expected:
            self._begin()

    def _begin(self) -> None:
        """Say who is there, and have them try each other."""
        if self._told:
            return
        self._told = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._reach_s, self._end)
        peers = [
            Peer(member.facts.node, member.facts.names.host, connection.peer.host, port)
            for (connection, member), port in zip(
                self._members.items(), self._ports.values(), strict=True
            )
        ]
        self._waiting = set()
        for place, connection in enumerate(self._members):
            if connection.send(Everyone(peers, place)):
                self._waiting.add(connection)
        if not self._waiting:
            self._end()

    def _end(self) -> None:
        """Tell all what was found."""
        if self._over:
            return
        self._over = True
        members = list(self._members.values())
        findings = compare(members, self._expected, self._issues)
        verdict = Verdict([member.facts.node for member in members], findings)
        for connection in self._members:
            connection.send(verdict)
