"""Nodes meet: one is the host, the others its guests, and all hear the same verdict."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.accepting import Acceptor
from undaunted.base.deadline import wait_for
from undaunted.base.text import format_duration
from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import Connection, WireError, describe
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.server import Server
from undaunted.coordinator.wire.sockets import listen, resolve
from undaunted.doctor.meeting_judge import PINGS, SUBJECT, Member, best, compare, estimate
from undaunted.doctor.meeting_messages import (
    Clock,
    Everyone,
    FromGuest,
    FromHost,
    Hello,
    MeetingVerdict,
    Peer,
    Ping,
    Pong,
    Reached,
    Unreached,
)

if TYPE_CHECKING:
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.doctor.facts import Facts
    from undaunted.doctor.known_issues import KnownIssues


# --- a guest of a meeting, as every node is, also the one that is its host ------------------------


_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_NAME_S = 5.0
_CONNECT_S = 3.0
_ALL_UP_TO = 16
_AT_ONCE = 8
_ANSWER_S = 10.0  # of the host, to a ping


async def attend(
    endpoint: str, terms: Terms, facts: Facts, *, join_s: float, reach_s: float
) -> MeetingVerdict:
    """Take part in the meeting at ``endpoint``; return what came of it.

    Args:
        endpoint: ``HOST:PORT``.
        terms: version, token, name of this node.
        facts: about this node.
        join_s: how long the meeting may take to begin, seconds.
        reach_s: then, how long the nodes have to try each other.

    Raises:
        WireError: there is no meeting, or it did not end in time; says why.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + join_s
    listeners = listen(await resolve(Address("", 0), _NAME_S, passive=True))
    # Who tries to reach this node is let in and out again: that it comes is all.
    answering = [Acceptor(listener, lambda peer: peer.close()) for listener in listeners]
    try:
        inbox = _Inbox()
        connection = await _connected(endpoint, inbox, terms, deadline)
        try:
            connection.send(Hello(facts, listeners[0].getsockname()[1]))
            clocks = []
            for _ in range(PINGS):
                connection.send(Ping(time.time_ns()))
                pong = await inbox.next(Pong, _ANSWER_S)
                clocks.append(estimate(pong, time.time_ns()))
            connection.send(best(clocks))
            everyone = await inbox.next(Everyone, max(0.0, deadline - loop.time()) + _ANSWER_S)
            connection.send(Reached(await try_peers(everyone)))
            verdict: MeetingVerdict = await inbox.next(MeetingVerdict, reach_s + _ANSWER_S)
            return verdict
        finally:
            connection.close("the doctor has what it wants")
    finally:
        for one in answering:
            one.close()


async def _connected(endpoint: str, inbox: _Inbox, terms: Terms, deadline: float) -> Connection:
    """Connect; the host of the meeting may be late."""
    loop = asyncio.get_running_loop()
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await connect(endpoint, inbox, terms, messages=FromHost)
        except WireError as error:
            if error.refused or loop.time() + pause_s >= deadline:
                raise
        # Not all at the same moment.
        await asyncio.sleep(pause_s * random.Random().uniform(0.5, 1.0))  # noqa: S311
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def chosen(you: int, count: int) -> list[int]:
    """Return the places of the peers to try: all of few, of many those at powers of two."""
    if count <= _ALL_UP_TO:
        return [place for place in range(count) if place != you]
    steps = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return list(dict.fromkeys((you + step) % count for step in steps))


async def try_peers(everyone: Everyone) -> list[Unreached]:
    """Look up the names of peers and connect to them; return those that failed."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(place: int) -> list[Unreached]:
        async with turn:
            return await _try_peer(place, everyone.peers[place])

    tried = await asyncio.gather(*(one(p) for p in chosen(everyone.you, len(everyone.peers))))
    return [unreached for found in tried for unreached in found]


async def _try_peer(place: int, peer: Peer) -> list[Unreached]:
    found = []
    try:
        await resolve(Address(peer.host, peer.port), _NAME_S)
    except OSError as error:
        found.append(Unreached(place, describe(error), name_only=True))
    try:
        _, writer = await wait_for(asyncio.open_connection(peer.address, peer.port), _CONNECT_S)
    except TimeoutError:
        late = f"{peer.address} has not answered within {format_duration(_CONNECT_S)}"
        found.append(Unreached(place, late))
    except OSError as error:
        found.append(Unreached(place, f"{peer.address}: {describe(error)}"))
    else:
        writer.close()
    return found


class _Inbox:
    """Messages of the host, in their order."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue(maxsize=64)

    def opened(self, connection: Connection) -> None:
        """Nothing to do."""

    def received(self, connection: Connection, message: Any) -> None:  # noqa: ARG002
        self._messages.put_nowait(message)

    def closed(self, connection: Connection, reason: str) -> None:  # noqa: ARG002
        if not self._messages.full():
            self._messages.put_nowait(WireError(f"the meeting has ended: {reason}"))

    async def next(self, kind: type[Any], timeout_s: float) -> Any:
        """Return the next message of a kind.

        Raises:
            WireError: it does not come in time, or at all.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                message = await wait_for(self._messages.get(), max(0.0, deadline - loop.time()))
            except TimeoutError:
                late = format_duration(timeout_s)
                raise WireError(f"the host of the meeting has not answered in {late}") from None
            if isinstance(message, WireError):
                raise message
            if isinstance(message, kind):
                return message


# --- the host of a meeting: collects, says who is there, lays beside each other, tells all --------


class Host:
    """Serves one meeting. Used on one loop.

    It goes through three stages: until all are there with their clocks, until all have tried to
    reach each other, and over. A node that leaves is not waited for any longer.
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
        verdict = MeetingVerdict([member.facts.node for member in members], findings)
        for connection in self._members:
            connection.send(verdict)


# --- meeting the other nodes: the one that can listen at the endpoint is the host -----------------


REACH_S = 30.0
_RUN_ID = "undaunted-doctor"
# Another doctor of this machine is the host, or this is not the machine of the endpoint.
_NOT_HERE = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a meeting, and how many nodes come.

    Attributes:
        endpoint: ``HOST:PORT``, that of the rendezvous.
        nodes: how many.
        token: what the nodes of the job know.
        join_s: how long all are waited for, seconds.
    """

    endpoint: str
    nodes: int
    token: bytes
    join_s: float


def meet(meeting: Meeting, facts: Facts, version: str, issues: KnownIssues) -> MeetingVerdict:
    """Meet the other nodes; what prevents that is a finding. Never raises because of others."""
    try:
        return asyncio.run(_meet(meeting, facts, version, issues))
    except WireError as error:
        why = str(error).removeprefix(f"{meeting.endpoint}: ")
        found = f"no meeting at {meeting.endpoint}: {why}"
        return MeetingVerdict([], [issues.setting("N03").finding(SUBJECT, found)])


async def _meet(
    meeting: Meeting, facts: Facts, version: str, issues: KnownIssues
) -> MeetingVerdict:
    terms = Terms(run_id=_RUN_ID, build=version, token=meeting.token, node=facts.node)
    host = Host(meeting.endpoint, terms, meeting.nodes, issues)
    try:
        await host.start(meeting.join_s, REACH_S)
    except WireError as error:
        if error.number not in _NOT_HERE:
            raise
    try:
        return await attend(meeting.endpoint, terms, facts, join_s=meeting.join_s, reach_s=REACH_S)
    finally:
        await host.close()
