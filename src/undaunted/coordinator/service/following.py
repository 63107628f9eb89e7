"""Runs a `Follower` over real connections."""

from __future__ import annotations

import asyncio
import errno
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from undaunted.base.recent import Recent
from undaunted.base.timers import Timers
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.follower import FollowerState
from undaunted.coordinator.lead.times import DIAL_S
from undaunted.coordinator.service.asking import ask
from undaunted.coordinator.service.option_differences import Differences
from undaunted.coordinator.wire.connection import WireError

if TYPE_CHECKING:
    from undaunted.coordinator.lead.follower import Follower
    from undaunted.coordinator.policy import messages as m
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.network import Network


class Node(Protocol):
    """The agent of a follower. Called on the loop; must not block."""

    def prepare(self, command: c.Prepare) -> None:
        """Reserve what a round needs of this node; `Following.table_known` is the answer."""

    def deliver(self, command: m.NodeCommand) -> None:
        """Carry out what the job policy commands."""

    def stop_ranks(self, stop: c.StopRanks) -> None:
        """Stop a round without an order."""

    def lead(self, command: c.Lead) -> None:
        """Serve the job from now on."""

    def stand_down(self) -> None:
        """Serve it no more, if this node does."""

    def missed(self, missed: c.Missed) -> None:
        """The leader cannot be reached, where a store decides who leads."""

    def found(self) -> None:
        """A leader is followed, where a store decides who leads."""

    def leave(self, reason: str) -> None:
        """The launcher was told to stop; nothing runs here any more."""

    def give_up(self, reason: str, *, lost: bool = False) -> None:
        """There is nobody to follow."""

    def say(self, text: str) -> None:
        """Show a line."""


class BesideFollower(Protocol):
    """Runs beside a follower. Called on the loop; must not block; see `BesideLeader`."""

    def linked(self, connection: Connection | None) -> None:
        """A leader is followed over this connection, perhaps another one; None = there is none."""

    def received(self, aside: p.Aside) -> None:
        """The leader that is followed has said something."""


class _Uplink:
    """Handler of one connection to a leader."""

    def __init__(self, following: Following, link: int) -> None:
        self._following = following
        self._link = link

    def opened(self, connection: Connection) -> None:
        self._following.opened(self._link, connection)

    def received(self, connection: Connection, message: Any) -> None:
        del connection
        self._following.received(self._link, message)

    def closed(self, connection: Connection, reason: str) -> None:
        self._following.closed(self._link, reason, silent=not connection.was_ended)


class Following:
    """One follower, for as long as its agent lives.

    Args:
        follower: the state machine; nobody else feeds it.
        network: for connections.
        node: whom it works for.
        beside: hears what the leader says aside.
    """

    def __init__(
        self,
        follower: Follower,
        network: Network,
        node: Node,
        beside: BesideFollower,
    ) -> None:
        self.follower = follower
        self.recent = Recent({"config": follower.config})
        self._network = network
        self._node = node
        self._differences = Differences(follower.config.settings)
        self._beside = beside
        self._connection: Connection | None = None
        self._linked: Connection | None = None  # as `beside` knows it
        self._link = 0
        self._timers = Timers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: dict[int, Connection] = {}
        self._numbers = itertools.count(1)
        self._over = False

    @property
    def lease_left_s(self) -> float | None:
        """The rest of the lease that the leader has given; see `Follower.lease_left_s`."""
        return self.follower.lease_left_s(self._network.now_ns())

    def begin(self) -> None:
        """Look for a leader."""
        self._feed(c.Begin())

    def tell(self, event: m.NodeEvent) -> None:
        """Report something to the leader, now or when there is one."""
        self._feed(c.Tell(event))

    def table_known(self, known: c.TableKnown) -> None:
        """Acknowledge a table; see `Node.prepare`."""
        self._feed(known)

    def leader_at(self, address: str, reason: str, epoch: int = 0) -> None:
        """The register says who leads; "" = nobody, for a reason if it is known."""
        self._feed(c.LeaderAt(address, reason, epoch))

    def asked(self, connection: Connection, question: p.Miss | p.Claim) -> None:
        """Answer another member."""
        number = next(self._numbers)
        self._questions[number] = connection
        self._feed(c.Asked(number, question))

    async def close(self) -> None:
        """Release everything."""
        self._over = True
        self._timers.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.close("the launcher ends")

    # --- the connection to the leader -----------------------------------------------------------

    def opened(self, link: int, connection: Connection) -> None:
        """A connection that was dialled stands."""
        if self._over or link != self._link:
            connection.close("another one is tried")
            return
        self._connection = connection
        self._feed(c.Opened(link))

    def received(self, link: int, message: p.Message) -> None:
        """The leader has said something."""
        if isinstance(message, p.Aside):
            if link == self._link and self._linked is not None:
                self._beside.received(message)
            return
        if isinstance(message, p.Welcome):
            for line in self._differences.of_leader(message):
                self._node.say(line)
        self._feed(c.Received(link, message))

    def closed(self, link: int, reason: str, *, silent: bool = False) -> None:
        """The connection to the leader is gone."""
        if link == self._link:
            self._connection = None
        self._feed(c.Closed(link, reason, silent=silent))

    # --- events and commands --------------------------------------------------------------------

    def _feed(self, event: c.FollowerEvent) -> None:
        if self._over and not isinstance(event, c.Asked):
            return  # others may ask as long as a leader stays here
        now = self._network.now_ns()
        commands = self.follower.handle(event, now)
        self.recent.note(now, event, commands)
        for command in commands:
            self._carry_out(command)
        follows = self.follower.state is FollowerState.FOLLOWING
        linked = self._connection if follows else None
        if linked is not self._linked:
            self._linked = linked
            self._beside.linked(linked)

    def _carry_out(self, command: c.FollowerCommand) -> None:
        match command:
            case c.Dial():
                self._hang_up()
                self._link = command.link
                self._start(self._dial(command))
            case c.Hangup(link=link):
                if link == self._link:
                    self._hang_up()
            case c.Send(link=link, message=message):
                if link == self._link and self._connection is not None:
                    self._connection.send(message)
            case c.Ask():
                self._start(self._ask(command))
            case c.Answer(question=number, message=message):
                connection = self._questions.pop(number, None)
                if connection is not None:
                    connection.send(message)
                    connection.close("answered")
            case c.SetTimer(name=name, delay_s=delay_s):
                self._timers.set(name, delay_s, partial(self._feed, c.TimerFired(name)))
            case _:
                self._tell_node(command)

    def _tell_node(self, command: c.FollowerCommand) -> None:
        node = self._node
        match command:
            case c.Prepare():
                node.prepare(command)
            case c.Deliver(command=ordered):
                node.deliver(ordered)
            case c.StopRanks():
                node.stop_ranks(command)
            case c.Lead():
                node.lead(command)
            case c.StandDown():
                node.stand_down()
            case c.Missed():
                node.missed(command)
            case c.Found():
                node.found()
            case c.Leave(reason=reason):
                node.leave(reason)
            case c.GiveUp(reason=reason, lost=lost):
                node.give_up(reason, lost=lost)
            case c.Say(text=text):
                node.say(text)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close("another one is tried")

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, command: c.Dial) -> None:
        try:
            uplink = _Uplink(self, command.link)
            await self._network.connect(
                command.address, uplink, longest=p.MAX_LINK_BYTES, timeout_s=DIAL_S
            )
        except WireError as error:
            ended = error.number == errno.ECONNREFUSED
            closed = c.Closed(command.link, str(error), refused=error.refused, ended=ended)
            self._feed(closed)

    async def _ask(self, command: c.Ask) -> None:
        answer, ended = await ask(command.address, command.message, self._network)
        self._feed(c.Answered(command.node, answer, ended))
