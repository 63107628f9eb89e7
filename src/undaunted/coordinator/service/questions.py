"""Questions that people ask a running job: one for each connection, a few at a time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from undaunted.base.accepting import Waiting
from undaunted.base.text import one_line
from undaunted.coordinator import protocol as p
from undaunted.coordinator.wire.address import UNIX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from undaunted.coordinator.wire.connection import Connection

FIRST_MESSAGE_S = 5.0
TAKE_S = 10.0  # for a client to take its answer
MOST_AT_ONCE = 8
_LONGEST_BY = 100  # characters


class FirstMessages(Waiting):
    """Connections over which nothing has been asked for yet: dropped if it takes too long."""

    def __init__(self) -> None:
        super().__init__(None, FIRST_MESSAGE_S)

    def expect(self, connection: Connection) -> None:
        """Wait for the first message, not for ever."""
        late = f"it has not said what it wants within {FIRST_MESSAGE_S:g} s"
        self.add(connection, partial(connection.drop, late))


class Questions:
    """Handler of the connections of people, and of those that a `Participant` hands over.

    Args:
        answer: called with what is asked and the text that names who asks; returns the answer,
            within a deadline.
        node: the one that answers here.
        pass_on: the same for questions to other nodes.
    """

    def __init__(
        self,
        answer: Callable[[bytes, str], Awaitable[bytes]],
        node: str = "",
        pass_on: Callable[[p.Question, str], Awaitable[p.Answer | p.Refused]] | None = None,
    ) -> None:
        self._answer, self._node, self._pass_on = answer, node, pass_on
        self._first = FirstMessages()
        self._asking: dict[Connection, asyncio.Task[None]] = {}

    def opened(self, connection: Connection) -> None:
        """Wait for the question."""
        self._first.expect(connection)

    def received(self, connection: Connection, message: Any) -> None:
        """Begin to answer a question, unless too many others are being answered."""
        self._first.remove(connection)
        if not isinstance(message, p.Question) or connection in self._asking:
            connection.drop("it does not ask one question")
        elif len(self._asking) >= MOST_AT_ONCE:
            reason = f"{MOST_AT_ONCE} others ask at the moment: try again"
            connection.send(p.Refused(reason=reason))
            connection.close(reason)
        else:
            asking = asyncio.get_running_loop().create_task(self._serve(connection, message))
            self._asking[connection] = asking
            asking.add_done_callback(lambda _: self._asking.pop(connection, None))

    def closed(self, connection: Connection, reason: str) -> None:
        """The asker is gone."""
        del reason
        self._first.remove(connection)
        if (asking := self._asking.get(connection)) is not None:
            asking.cancel()

    async def _serve(self, connection: Connection, question: p.Question) -> None:
        # Where this process stood still, who has given up meanwhile is noticed in this turn of the
        # loop: what such a client has ordered is not carried out.
        await asyncio.sleep(0)
        if not connection.is_open:
            return
        by = one_line(question.by, longest=_LONGEST_BY)
        by = by or f"undaunted ctl ({str(connection.peer).removeprefix(UNIX)})"
        answer: p.Message
        if self._pass_on is None or question.node in ("", self._node):
            answer = p.Answer(data=await self._answer(question.data, by))
        else:
            answer = await self._pass_on(question, by)
        connection.longest = p.MAX_ANSWER_BYTES
        connection.send(answer)
        await asyncio.sleep(TAKE_S)  # it ends the connection, and thereby this, when it has it
        connection.drop("it has not taken its answer")
