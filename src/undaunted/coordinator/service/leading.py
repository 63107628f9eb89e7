"""Runs a `Leader` over the connections of a server."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from undaunted.base.recent import Recent
from undaunted.base.timers import Timers
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import LeaderState
from undaunted.coordinator.policy.placement import name_some
from undaunted.coordinator.service.asking import answer_of, ask
from undaunted.coordinator.service.option_differences import Differences
from undaunted.coordinator.wire.connection import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.lead.leader import Leader
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.network import Network


# A node needs 5 s for its answer, at most.
PASS_ON_S = 10.0
# The same for an order: the leader itself needs 5 s where the node does not answer.
ORDER_S = 7.0


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
        network: for questions to members that are not connected.
        keep: writes a ledger down; must not block. What it is given besides is called, in any
            thread, with the version that is written.
        done: called once, with the address of the leader's successor or "".
        watch: called when the ledger has changed, and must not block; None = nobody looks.
        say: shows a line; None = nobody reads it.
        beside: called when a follower says something aside for the first time; returns the hearer,
            which is closed when this ends; None = nobody hears it.
    """

    def __init__(
        self,
        leader: Leader,
        network: Network,
        *,
        keep: Callable[[p.Ledger, Callable[[int], None]], None],
        done: Callable[[str], None],
        watch: Callable[[Leader], None] | None = None,
        say: Callable[[str], None] | None = None,
        beside: Callable[[], BesideLeader] | None = None,
    ) -> None:
        self.leader = leader
        self.recent = Recent(leader.made)
        self._network = network
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
        self._loop = asyncio.get_running_loop()

    @property
    def is_needed(self) -> bool:
        """Return whether others have yet to hear of the end, or of the next leader."""
        return self.leader.state is LeaderState.ENDED or self.leader.ledger.round >= 0

    @property
    def pause_left_s(self) -> float | None:
        """Return how long the timer of the job's pause runs, None = it does not."""
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

    def knows(self, connection: Connection) -> bool:
        """Return whether somebody has introduced himself over a connection."""
        return connection in self._links

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection has ended."""
        link = self._links.pop(connection, None)
        if link is not None and self._beside is not None:
            self._beside.closed(connection, reason, silent=not connection.in_order)
        if link is not None and self._connections.pop(link, None) is not None:
            self._feed(c.Closed(link, reason, silent=not connection.was_ended))

    def _written(self, version: int) -> None:
        """A ledger has been written down; in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._feed, c.Persisted(version))

    def holds(self, *, held: bool) -> None:
        """Others can see in the store that this leader is there, or not any more."""
        self._feed(c.Holds(held))

    def deposed(self, reason: str) -> None:
        """Somebody else may lead from now on; tell followers."""
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
                self._network,
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
        """Release everything; tell nobody."""
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

    def _feed(self, event: c.LeaderEvent) -> None:
        if self._over:
            return
        now = self._network.now_ns()
        commands = self.leader.handle(event, now)
        self.recent.note(now, event, commands)
        for command in commands:
            self._carry_out(command)
        if self._watch is not None and self.leader.ledger is not self._watched:
            self._watched = self.leader.ledger
            self._watch(self.leader)

    def _carry_out(self, command: c.LeaderCommand) -> None:
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
                self._keep(ledger, self._written)
            case c.SetTimer(name=name, round=number, delay_s=delay_s):
                self._timers.set(name, delay_s, partial(self._feed, c.TimerFired(name, number)))
            case c.Done(successor=successor):
                self._over = True
                self._timers.cancel()
                self._done(successor)

    async def _ask(self, command: c.Ask) -> None:
        answer, ended = await ask(command.address, command.message, self._network)
        self._feed(c.Answered(command.node, answer, ended))
