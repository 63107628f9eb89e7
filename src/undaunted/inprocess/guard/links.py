"""The messages between guards and the controller, and the silence of a link.

Reports of guards and words of the controller are those of `core.messages`. They go as `Aside`, with
the number of the round, over the connection of a node to the leader of the job, or over one that a
guard in a separate process has made; the latter also has `Lease` and `Bye`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.inprocess.core.messages import (  # noqa: TC001 - fields are decoded by them
    FromGuard,
    ToRank,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = p.MAX_LINK_BYTES - 1024
_RESOLUTION_S = 0.001  # a timer may fire early by it


class Lease(msgspec.Struct, frozen=True, tag=True):
    """A guard is alive; the controller answers with the same message."""


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The last message of a guard on a connection; without it, the guard has probably died.

    Attributes:
        back: the guard will connect again. False = its ranks have ended, and it has reported that.
    """

    back: bool = False


ToController = p.Aside | Lease | Bye
ToGuard = p.Aside | Lease


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A report of a guard.

    Attributes:
        round: of its ranks; 0 outside of `undaunted run`.
    """

    round: int
    message: FromGuard


class Word(msgspec.Struct, frozen=True, array_like=True):
    """A message of the controller for some ranks of a guard, in a round."""

    round: int
    job_ranks: tuple[int, ...]
    message: ToRank


class EncodedWord(msgspec.Struct, frozen=True, array_like=True):
    """`Word`, with a message that was encoded once for all guards."""

    round: int
    job_ranks: tuple[int, ...]
    message: msgspec.Raw


ENCODER = msgspec.msgpack.Encoder()
_REPORTS = msgspec.msgpack.Decoder(Report)
_WORDS = msgspec.msgpack.Decoder(Word)


def aside(message: Report | EncodedWord, say: Callable[[str], None]) -> p.Aside | None:
    """Return a message in the form for a connection; None = it is too long: a line says so."""
    data = ENCODER.encode(message)
    if len(data) <= _LONGEST:
        return p.Aside(data=data)
    say(
        f"a message of {len(data)} bytes for in-process restart is not sent, as it is longer than "
        f"{_LONGEST} bytes: have RankAssignment.info return less for each rank"
    )
    return None


def read_report(message: p.Aside) -> Report:
    """Return the report that a guard has sent.

    Raises:
        msgspec.MsgspecError: it is no message.
    """
    return _REPORTS.decode(message.data)


def read_word(message: p.Aside) -> Word:
    """Return the message that the controller has sent to a guard.

    Raises:
        msgspec.MsgspecError: it is no message.
    """
    return _WORDS.decode(message.data)


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

    def heard(self, at: float | None = None) -> None:
        """The link works now, or did at a time of the loop."""
        self._heard = self._loop.time() if at is None else at

    def cancel(self) -> None:
        """Do not call any more."""
        self._timer.cancel()

    def _fired(self) -> None:
        end = self._heard + self._limit_s
        if end <= self._loop.time() + _RESOLUTION_S:
            self._call()
        else:
            self._timer = self._loop.call_at(end, self._fired)
