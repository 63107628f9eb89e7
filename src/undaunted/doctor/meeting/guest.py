"""A guest of a meeting, as every node is, also the one that is its host."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from undaunted.base.accepting import Acceptor
from undaunted.base.text import format_duration
from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import Connection, WireError, describe
from undaunted.coordinator.wire.sockets import bounded, listen, resolve
from undaunted.doctor.meeting.clocks import PINGS, best, estimate
from undaunted.doctor.meeting.messages import (
    Everyone,
    FromHost,
    Hello,
    Peer,
    Ping,
    Pong,
    Reached,
    Unreached,
    Verdict,
)

if TYPE_CHECKING:
    from undaunted.coordinator.wire.handshake import Terms
    from undaunted.doctor.facts import Facts

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_NAME_S = 5.0
_CONNECT_S = 3.0
_ALL_UP_TO = 16
_AT_ONCE = 8
_ANSWER_S = 10.0  # of the host, to a ping


async def attend(
    endpoint: str, terms: Terms, facts: Facts, *, join_s: float, reach_s: float
) -> Verdict:
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
            verdict: Verdict = await inbox.next(Verdict, reach_s + _ANSWER_S)
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
        _, writer = await bounded(asyncio.open_connection(peer.address, peer.port), _CONNECT_S)
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
                message = await bounded(self._messages.get(), max(0.0, deadline - loop.time()))
            except TimeoutError:
                late = format_duration(timeout_s)
                raise WireError(f"the host of the meeting has not answered in {late}") from None
            if isinstance(message, WireError):
                raise message
            if isinstance(message, kind):
                return message
