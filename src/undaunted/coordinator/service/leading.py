"""Runs a `Leader` over the connections of a server."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from undaunted.base.recent import Recent
from undaunted.base.text import format_duration
from undaunted.base.timers import Timers, lease_clock_ns
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core.formation import name_some
from undaunted.coordinator.core.leader import LeaderState
from undaunted.coordinator.service.asking import answer_of, ask
from undaunted.coordinator.service.option_differences import Differences
from undaunted.coordinator.service.questions import FirstMessages, Questions
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.server import Server

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from undaunted.coordinator.core.leader import Leader
    from undaunted.coordinator.service.following import Following
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.handshake import Terms


# A node needs 5 s for its answer, at most.
PASS_ON_S = 10.0
# The same for an order: the leader itself needs 5 s where the node does not answer.
ORDER_S = 7.0
_NOT_LEADING = "this node does not lead the job"


class BesideLeader(Protocol):
    """Runs beside one leader. Called on the loop; must not block.

    It speaks with what runs beside the followers, by `Aside` over their connections; nothing here
    knows what that means.
    """

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


class Leading:
    """One leader, from its first event until it is done.

    Args:
        leader: the state machine; nobody else feeds it.
        terms, tls: for questions to members that are not connected.
        keep: writes a ledger down; must not block.
        done: called once, with the address of the leader's successor or "".
        watch: called when the ledger has changed, and must not block; None = nobody looks.
        say: shows a line; None = nobody reads it.
        beside: called when a follower says something aside for the first time; returns the hearer,
            which is closed when this ends; None = nobody hears it.
    """

    def __init__(
        self,
        leader: Leader,
        terms: Terms,
        tls: ssl.SSLContext | None,
        *,
        keep: Callable[[p.Ledger], None],
        done: Callable[[str], None],
        watch: Callable[[Leader], None] | None = None,
        say: Callable[[str], None] | None = None,
        beside: Callable[[], BesideLeader] | None = None,
    ) -> None:
        self.leader = leader
        self.recent = Recent(leader.made)
        self._terms, self._tls = terms, tls
        self._keep, self._done = keep, done
        self._watch, self._watched = watch, leader.ledger
        self._say = say
        self._differences = Differences(leader.config.settings, alone=not leader.config.node)
        self._make_beside = beside
        self._beside: BesideLeader | None = None
        self._connections: dict[int, Connection] = {}
        self._links: dict[Connection, int] = {}
        self._last_link = 0
        self._timers = Timers()
        self._questions: set[asyncio.Task[None]] = set()
        self._over = False

    @property
    def is_needed(self) -> bool:
        """Whether others have yet to hear of the end, or who leads when this node has left."""
        return self.leader.state is LeaderState.ENDED or self.leader.ledger.round >= 0

    @property
    def pause_left_s(self) -> float | None:
        """How long the timer of the job's pause runs, None = it does not."""
        return self._timers.left_s("policy pause")

    def begin(self) -> None:
        """Serve from now on."""
        self._feed(c.Begin())

    def received(self, connection: Connection, message: p.Message) -> None:
        """A follower, or who wants to be one, has said something."""
        link = self._links.get(connection)
        if isinstance(message, p.Aside):
            if link is not None and self._make_beside is not None:
                self._beside = self._beside or self._make_beside()
                self._beside.received(connection, message)
            return
        if link is None:
            self._last_link = link = self._last_link + 1
            self._links[connection] = link
            self._connections[link] = connection
        if isinstance(message, p.Hello) and self._say is not None:
            for line in self._differences.of_follower(message):
                self._say(line)
        self._feed(c.Received(link, message))

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection has ended."""
        link = self._links.pop(connection, None)
        if link is not None and self._beside is not None:
            self._beside.closed(connection, reason, silent=not connection.in_order)
        if link is not None and self._connections.pop(link, None) is not None:
            self._feed(c.Closed(link, reason, silent=not connection.was_ended))

    def persisted(self, version: int) -> None:
        """A ledger that was to be kept has been written down, where that matters."""
        self._feed(c.Persisted(version))

    def deposed(self, reason: str) -> None:
        """Somebody else may lead from now on; followers are told."""
        self._feed(c.Deposed(reason))

    async def pass_on_order(self, data: bytes, by: str) -> p.Answer | p.Refused:
        """Have another node report what is ordered: it tells the next leader as well."""
        heard, addresses = self.leader.heard(), self.leader.addresses()
        others = [node for node in heard if addresses[node] and node != self.leader.config.node]
        if not others:
            return p.Refused(
                reason="no node is here that takes connections (takeover=0: none does)"
            )
        node = max(others, key=lambda each: heard[each])
        return await self.pass_on(p.Question(data=data, node=node), by, ORDER_S)

    async def pass_on(
        self, question: p.Question, by: str, within_s: float | None = None
    ) -> p.Answer | p.Refused:
        """Have the node that is asked answer."""
        node, addresses = question.node, self.leader.addresses()
        if not addresses.get(node):
            there = name_some(addresses) or "no node yet"
            reason = f"node {node} is not in the job, which has {there}"
            if node in addresses:
                reason = f"node {node} takes no connections (takeover=0): ask on its machine"
            return p.Refused(reason=reason)
        try:
            answer = await answer_of(
                addresses[node],
                msgspec.structs.replace(question, by=by),
                self._terms,
                self._tls,
                timeout_s=within_s or PASS_ON_S,
                longest=p.MAX_ANSWER_BYTES,
            )
        except WireError as error:
            return p.Refused(reason=f"node {node}: {error}")
        if isinstance(answer, p.Answer):
            return answer
        reason = answer.reason if isinstance(answer, p.Refused) else "it does not answer that"
        return p.Refused(reason=f"node {node}: {reason}")

    async def close(self) -> None:
        """Release everything; nobody is told."""
        self._over = True
        self._timers.cancel()
        if self._beside is not None:
            self._beside.close()
        for question in self._questions:
            question.cancel()
        await asyncio.gather(*self._questions, return_exceptions=True)
        for connection in self._connections.values():
            connection.close("the coordinator ends")
        self._connections.clear()
        self._links.clear()

    def _feed(self, event: c.Event) -> None:
        if self._over:
            return
        now = lease_clock_ns()
        commands = self.leader.handle(event, now)
        self.recent.note(now, event, commands)
        for command in commands:
            self._carry_out(command)
        if self._watch is not None and self.leader.ledger is not self._watched:
            self._watched = self.leader.ledger
            self._watch(self.leader)

    def _carry_out(self, command: c.Command) -> None:
        match command:
            case c.Send(link=link, message=message):
                if link in self._connections:
                    self._connections[link].send(message)
            case c.Close(link=link):
                connection = self._connections.pop(link, None)
                if connection is not None:
                    del self._links[connection]
                    connection.close("closed by the coordinator")
                    if self._beside is not None:
                        self._beside.closed(connection, "it was not heard of", silent=True)
            case c.Ask():
                question = asyncio.get_running_loop().create_task(self._ask(command))
                self._questions.add(question)
                question.add_done_callback(self._questions.discard)
            case c.Persist(ledger=ledger):
                self._keep(ledger)
            case c.SetTimer(name=name, round=number, delay_s=delay_s):
                self._timers.set(name, delay_s, partial(self._feed, c.TimerFired(name, number)))
            case c.Done(successor=successor):
                self._over = True
                self._timers.cancel()
                self._done(successor)

    async def _ask(self, command: c.Ask) -> None:
        answer: Any = await ask(command.address, command.message, self._terms, self._tls)
        self._feed(c.Answered(command.node, answer))


def job_server(
    listener: Listener,
    terms: Terms,
    tls: ssl.SSLContext | None,
    *,
    port: int,
    nodes: int,
    say: Callable[[str], None],
) -> Server:
    """Make the server at which the nodes of a job, ``nodes`` at most, meet; it is not started."""
    host = "" if terms.token else "127.0.0.1"
    server = Server(f"{host}:{port}", listener, terms, tls=tls, say=say)
    server.nodes = nodes
    server.longest = p.MAX_LINK_BYTES
    return server


class Listener:
    """Handler of the connections to a node: its followers, where it leads, members and people.

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

    def let_ask(self, node: str, answer: Callable[[bytes, str], Awaitable[bytes]]) -> None:
        """Have people's questions to this node, or to the leader while it is here, answered."""
        self.questions = Questions(answer, node, self._pass_on)

    def opened(self, connection: Connection) -> None:
        """Wait for the first message."""
        self._first.expect(connection)

    def received(self, connection: Connection, message: Any) -> None:
        """Pass a message on: what members ask to the follower, most others to the leader."""
        if isinstance(message, p.Hello | p.Miss | p.Claim | p.Question):
            self._first.remove(connection)  # anything else comes after one of these
        if isinstance(message, p.Miss | p.Claim):
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
        left_s = None if follower is None else follower.lease_left_s(lease_clock_ns())
        if follower is None or left_s is None:
            return p.Refused(reason=f"{_NOT_LEADING}, and does not know who does")
        node, name = follower.config.node, follower.knows.ledger.leader
        leader = f"node {name}" if name else "the coordinator"
        who = f"--node {node} asks this node for itself; the job is led by {leader}"
        heard = f"last heard of {format_duration(follower.lease_s - left_s)} ago"
        return p.Refused(reason=f"{who}, {heard}", leader=follower.leader)

    def _leader(self) -> str:
        return "" if self.following is None else self.following.follower.leader
