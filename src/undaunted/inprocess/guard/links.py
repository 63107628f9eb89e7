"""The link of a guard to the controller: what is said on it, when it is silent, when it is lost.

A guard in a process of its own has a connection. On it go the messages of `core.messages`, and
`Lease`, `Bye` and `Told`. A node's agent uses the connection that its node has to the leader of the
job anyway: there the messages go as `Aside`, with the number of the round, as they must not reach
another round's ranks.
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
    """A guard is there; the answer is the same."""


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The last word of a guard on a connection; without it, the guard has probably died.

    Attributes:
        back: it is going to connect again. Otherwise its ranks have ended, and it has said all.
    """

    back: bool = False


class Told(msgspec.Struct, frozen=True, tag=True):
    """A message of the controller for some of a guard's ranks."""

    job_ranks: tuple[int, ...]
    message: ToRank


class EncodedTold(msgspec.Struct, frozen=True, tag="Told"):
    """The same, with a message that was encoded once for all guards."""

    job_ranks: tuple[int, ...]
    message: msgspec.Raw


ToController = FromGuard | Lease | Bye
ToGuard = Told | Lease


# --- aside, over the connection of a node to its leader -------------------------------------------


class RoundReport(msgspec.Struct, frozen=True, array_like=True):
    """What a guard reports, in a round."""

    round: int
    message: FromGuard


class RoundTold(msgspec.Struct, frozen=True, array_like=True):
    """A message of the controller for some of a node's ranks, in a round."""

    round: int
    job_ranks: tuple[int, ...]
    message: ToRank


class EncodedRoundTold(msgspec.Struct, frozen=True, array_like=True):
    """The same, with a message that was encoded once for all nodes."""

    round: int
    job_ranks: tuple[int, ...]
    message: msgspec.Raw


_ENCODER = msgspec.msgpack.Encoder()
_REPORTS = msgspec.msgpack.Decoder(RoundReport)
_TOLD = msgspec.msgpack.Decoder(RoundTold)


def aside(message: RoundReport | EncodedRoundTold, say: Callable[[str], None]) -> p.Aside | None:
    """Return a message as it is sent; None = it is too long, and a line says so."""
    data = _ENCODER.encode(message)
    if len(data) <= _LONGEST:
        return p.Aside(data=data)
    say(
        f"a message of {len(data)} bytes about functions that are restarted in their processes is "
        f"not sent, as more than {_LONGEST} bytes are too many: let rank assignments want to know "
        "less of each rank"
    )
    return None


def read_report(message: p.Aside) -> RoundReport:
    """Return what a node's guard has sent.

    Raises:
        msgspec.MsgspecError: it is no message.
    """
    return _REPORTS.decode(message.data)


def read_told(message: p.Aside) -> RoundTold:
    """Return what the controller has sent to a node.

    Raises:
        msgspec.MsgspecError: it is no message.
    """
    return _TOLD.decode(message.data)


# --- silent and lost links ------------------------------------------------------------------------


def patience_s(unreachable_s: float, *, in_order: bool, back: bool = False) -> float:
    """Return for how long a guard is waited for whose connection has ended, in seconds.

    When that is over, the others go on without its ranks. By then these must not run any more:
    nobody may be in the epoch before while others are in the next one.

    Args:
        unreachable_s: after so long a guard that lives, and does not reach the controller, has
            ended its ranks' calls.
        in_order: the other side's kernel has closed the connection: the guard's process has ended,
            and its rank has noticed. A reset may come from the network, which may keep the guard
            out from now on, perhaps without its knowing that the connection is gone.
        back: the guard has said that it comes back.
    """
    return GRACE_S if in_order and not back else unreachable_s


class Silence:
    """Calls back once when nothing was heard for ``limit_s`` seconds; to be cancelled.

    Hearing something costs a look at the clock: the timer is put off only when it fires.
    """

    def __init__(self, limit_s: float, call: Callable[[], None]) -> None:
        """Begin now."""
        self._limit_s = limit_s
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._fired)

    def heard(self) -> None:
        """Something has come."""
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
