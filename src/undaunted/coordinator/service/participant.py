"""One process's part in a job of several nodes: it listens, and follows or leads, or both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from undaunted.base.text import format_duration
from undaunted.coordinator import protocol as p
from undaunted.coordinator.service.questions import FirstMessages, Questions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from undaunted.coordinator.service.following import Following
    from undaunted.coordinator.service.leading import Leading
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.network import Listening, Network

_NOT_LEADING = "this node does not lead the job"


class Participant:
    """Handler of the connections to a process: its followers, where it leads, members and people.

    Attributes:
        leading: the leader that is served here, None = none.
        following: of this node; None = this is no node, but a coordinator alone.
        questions: of people; None = nobody answers them.
    """

    def __init__(self) -> None:
        self._first = FirstMessages()
        self.leading: Leading | None = None
        self.following: Following | None = None
        self.questions: Questions | None = None
        self._servers: list[Listening] = []
        self._closing: set[asyncio.Task[None]] = set()  # leaders of before

    async def listen(
        self, network: Network, port: int, *, nodes: int, say: Callable[[str], None]
    ) -> int:
        """Listen at a port, and return which it is; see `Network.server`.

        Raises:
            WireError: it cannot; says why.
        """
        server = network.server(port, self, nodes=nodes, say=say)
        await server.start()
        self._servers.append(server)
        return server.port

    @property
    def port(self) -> int:
        """The first port at which it listens."""
        return self._servers[0].port

    def lead(self, leading: Leading) -> None:
        """Serve the job from now on, in the place of a leader of before."""
        self.stand_down()
        self.leading = leading
        leading.begin()

    def stand_down(self) -> None:
        """Serve it no more, if it is served here."""
        leading, self.leading = self.leading, None
        if leading is not None:
            closing = asyncio.get_running_loop().create_task(leading.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self, reason: str) -> None:
        """Lead and listen no more; tell nobody."""
        self.stand_down()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for server in self._servers:
            await server.close(reason)

    def serve_questions(self, node: str, answer: Callable[[bytes, str], Awaitable[bytes]]) -> None:
        """Answer questions of people to this node, or to the leader while it is here."""
        self.questions = Questions(answer, node, self._pass_on)

    def opened(self, connection: Connection) -> None:
        """Wait for the first message."""
        self._first.expect(connection)

    def received(self, connection: Connection, message: Any) -> None:
        """Pass a message on: what members ask to the follower, most others to the leader."""
        if isinstance(message, p.Hello | p.Miss | p.Claim | p.Question):
            self._first.remove(connection)  # anything else comes after one of these
        if isinstance(message, p.Miss | p.Claim) and not self._is_follower(connection):
            self._asked(connection, message)
        elif isinstance(message, p.Question) and self.questions and self._answers(message.node):
            self.questions.received(connection, message)
        elif self.leading is not None and not isinstance(message, p.Question):
            self.leading.received(connection, message)
        else:
            refused = p.Refused(reason=_NOT_LEADING, leader=self._leader())
            connection.send(self._referral() if isinstance(message, p.Question) else refused)
            connection.close(_NOT_LEADING)

    def closed(self, connection: Connection, reason: str) -> None:
        """Tell the leader."""
        self._first.remove(connection)
        if self.questions is not None:
            self.questions.closed(connection, reason)
        if self.leading is not None:
            self.leading.closed(connection, reason)

    def _is_follower(self, connection: Connection) -> bool:
        """Whether it is a follower of the leader here: what it misses is this leader."""
        return self.leading is not None and self.leading.knows(connection)

    def _answers(self, node: str) -> bool:
        """Whether questions to a node are answered, or passed on, here; see `protocol.Question`."""
        here = self.following is not None and node == self.following.follower.config.node
        return here or self.leading is not None

    async def _pass_on(self, question: p.Question, by: str) -> p.Answer | p.Refused:
        if self.leading is None:
            return self._referral()
        return await self.leading.pass_on(question, by)

    def _asked(self, connection: Connection, question: p.Miss | p.Claim) -> None:
        if self.following is not None:
            self.following.asked(connection, question)
        else:
            connection.close("there is nobody to ask here")

    def _referral(self) -> p.Refused:
        """Tell a person who is to be asked, and whether there is hope."""
        follower = None if self.following is None else self.following.follower
        left_s = None if self.following is None else self.following.lease_left_s
        if follower is None or left_s is None:
            return p.Refused(reason=f"{_NOT_LEADING}, and does not know who does")
        node, name = follower.config.node, follower.knows.ledger.leader
        leader = f"node {name}" if name else "the coordinator"
        who = f"--node {node} asks this node for itself; the job is led by {leader}"
        heard = f"last heard of {format_duration(follower.lease_s - left_s)} ago"
        return p.Refused(reason=f"{who}, {heard}", leader=follower.leader)

    def _leader(self) -> str:
        return "" if self.following is None else self.following.follower.leader
