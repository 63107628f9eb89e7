"""The link of a guard to the controller: its messages, its silence, its loss.

A guard in a process of its own has a connection of its own, with the messages of `core.messages`,
and `Lease`, `Bye` and `Told`. An agent uses the connection of its node to the leader of the job:
there the messages go as `Aside`, with the number of the round, to keep rounds apart.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.inprocess.core.messages import FromGuard, ToRank

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = p.MAX_LINK_BYTES - 1024
# A guard whose connection was closed in order is back within milliseconds if it lives.
GRACE_S = 1.0


# --- over a connection of the guard's own ---------------------------------------------------------


class Lease(msgspec.Struct, frozen=True, tag=True):
    """A guard is alive; the controller answers with the same message."""


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The last message of a guard on a connection; without it, the guard has probably died.

    Attributes:
        back: the guard will connect again. False = its ranks have ended, and it has reported that.
    """

    back: bool = False


class Told(msgspec.Struct, frozen=True, tag=True):
    """A message of the controller for some of a guard's ranks."""

    job_ranks: tuple[int, ...]
    message: ToRank


class EncodedTold(msgspec.Struct, frozen=True, tag="Told"):
    """`Told`, with a message that was encoded once for all guards."""

    job_ranks: tuple[int, ...]
    message: msgspec.Raw


ToController = FromGuard | Lease | Bye
ToGuard = Told | Lease


# --- aside, over the connection of a node to its leader -------------------------------------------


class RoundReport(msgspec.Struct, frozen=True, array_like=True):
    """A report of a guard, with its round."""

    round: int
    message: FromGuard


class RoundTold(msgspec.Struct, frozen=True, array_like=True):
    """A message of the controller for some of a node's ranks, with its round."""

    round: int
    job_ranks: tuple[int, ...]
    message: ToRank


class EncodedRoundTold(msgspec.Struct, frozen=True, array_like=True):
    """`RoundTold`, with a message that was encoded once for all nodes."""

    round: int
    job_ranks: tuple[int, ...]
    message: msgspec.Raw


_ENCODER = msgspec.msgpack.Encoder()
_REPORTS = msgspec.msgpack.Decoder(RoundReport)
_TOLD = msgspec.msgpack.Decoder(RoundTold)


def aside(message: RoundReport | EncodedRoundTold, say: Callable[[str], None]) -> p.Aside | None:
    """Return a message in the form for a connection; None = it is too long, which is said."""
    data = _ENCODER.encode(message)
    if len(data) <= _LONGEST:
        return p.Aside(data=data)
    say(
        f"a message of {len(data)} bytes for in-process restart is not sent, as it is longer than "
        f"{_LONGEST} bytes: have RankAssignment.info return less for each rank"
    )
    return None


def read_report(message: p.Aside) -> RoundReport:
    """Return the report that a node's guard has sent.

    Raises:
        msgspec.MsgspecError: it is no message.
    """
    return _REPORTS.decode(message.data)


def read_told(message: p.Aside) -> RoundTold:
    """Return the message that the controller has sent to a node.

    Raises:
        msgspec.MsgspecError: it is no message.
    """
    return _TOLD.decode(message.data)


# --- silent and lost links ------------------------------------------------------------------------


def patience_s(unreachable_s: float, *, in_order: bool, back: bool = False) -> float:
    """Return for how many seconds a guard is waited for whose connection has ended.

    After that, the others go on without its ranks. By then these must have stopped: no rank may be
    in the epoch before while others are in the next one.

    Args:
        unreachable_s: within this time a living guard that cannot reach the controller has ended
            its ranks' calls.
        in_order: the other side's kernel has closed the connection: the guard's process has ended,
            and its rank has noticed. False = the network may have reset it, and may keep the guard
            out from now on, which may not even notice.
        back: the guard has said that it comes back.
    """
    return GRACE_S if in_order and not back else unreachable_s


class Silence:
    """Calls back once when nothing was heard for ``limit_s`` seconds; to be cancelled.

    `heard` only notes the time; the timer is put off when it fires.
    """

    def __init__(self, limit_s: float, call: Callable[[], None]) -> None:
        """Begin now."""
        self._limit_s = limit_s
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._fired)

    def heard(self) -> None:
        """A message has come."""
        self._heard = self._loop.time()

    def cancel(self) -> None:
        """Do not call any more."""
        self._timer.cancel()

    def _fired(self) -> None:
        end = self._heard + self._limit_s
        if end <= self._loop.time():
            self._call()
        else:
            self._timer = self._loop.call_at(end, self._fired)
