"""Carrying out a verdict on the epoch, in this order.

The user's code leaves `atomic`; communication is aborted, in a thread of its own, as that may hang;
the user's thread is told, and interrupted until it is out of the user's code.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from typing import TYPE_CHECKING

from undaunted.inprocess import threads
from undaunted.inprocess.core.messages import Finished, Stop
from undaunted.inprocess.rank.inbox import Broken

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.rank.alone import Alone
    from undaunted.inprocess.rank.gate import Gate
    from undaunted.inprocess.rank.inbox import Inbox, Verdict
    from undaunted.inprocess.rank.interrupt import Interrupter

# How soon a thread is interrupted again, seconds: where it came at the wrong place, and where it
# was swallowed.
_SOON_S = 0.002
_AGAIN_S = 0.05
_LONGEST_S = 1.0
# When the pause has become that long, seconds, it may be that it waits for others again.
_INSIST_S = 0.2

_log = logging.getLogger("undaunted")


class _Stage(enum.Enum):
    LISTENING = enum.auto()  # the epoch is on
    ATOMIC = enum.auto()  # it is over; the user's code is in `atomic`
    ABORTING = enum.auto()
    INTERRUPTING = enum.auto()
    DONE = enum.auto()  # no epoch is on


class Termination:
    """Of one call; used in the watcher's thread.

    Attributes:
        ruled_at: when the last verdict that stops an epoch came, seconds of the monotonic clock.
        aborted_at: when communication was aborted for it.
        again_at: when `go_on` has something to do again, 0 = when something happens.
    """

    def __init__(
        self,
        inbox: Inbox,
        gate: Gate,
        interrupter: Interrupter,
        wake: Callable[[], None],
        *,
        abort: Callable[[], None],
        insist: Callable[[], None],
        alone: Alone,
        message_of: Callable[[Verdict], str],
    ) -> None:
        """Prepare.

        Args:
            inbox: where verdicts are put.
            gate: of the user's thread.
            interrupter: of the user's thread.
            wake: has the watcher call `go_on`.
            abort: aborts communication; may hang, and must not raise.
            insist: called when the user's thread does not come, again and again: it may have begun
                to wait for others after the abort.
            alone: ends this process when nobody else would.
            message_of: what interruptions say.
        """
        self.ruled_at = self.aborted_at = self.again_at = 0.0
        self._inbox = inbox
        self._gate = gate
        self._interrupter = interrupter
        self._wake = wake
        self._abort = abort
        self._insist = insist
        self._alone = alone
        self._message_of = message_of
        self._stage = _Stage.DONE
        self._verdict: Verdict | None = None
        self._aborted = threading.Event()
        self._again_s = _AGAIN_S

    def begin_epoch(self) -> None:
        """A record has come."""
        self._stage = _Stage.LISTENING
        self.again_at = 0.0

    def rule(self, verdict: Verdict) -> None:
        """Take up a verdict: the first one of an epoch, or one that ends the call."""
        if isinstance(verdict, Broken):
            self._alone.begin()
        if self._stage is _Stage.LISTENING and not isinstance(verdict, Finished):
            self._verdict = verdict
            self._stage = _Stage.ATOMIC
            self.ruled_at = time.monotonic()
        elif self._stage in (_Stage.ATOMIC, _Stage.ABORTING):
            if not isinstance(verdict, Stop):
                self._verdict = verdict
        elif not isinstance(verdict, Stop):
            self._inbox.put(verdict)

    def go_on(self) -> None:
        """Carry the verdict further, as far as that is possible now."""
        if self._stage is _Stage.ATOMIC:
            self._begin_abort()
        if self._stage is _Stage.ABORTING and self._aborted.is_set():
            self._end_abort()
        if self._stage is _Stage.INTERRUPTING:
            self._interrupt()
        self._alone.end_if_due()

    def _begin_abort(self) -> None:
        assert self._verdict is not None
        if self._gate.terminate(self._message_of(self._verdict)):
            self._stage = _Stage.ABORTING
            self._aborted.clear()
            threads.start(self._abort_and_wake, "abort")

    def _abort_and_wake(self) -> None:
        try:
            self._abort()
        finally:
            self._aborted.set()
            self._wake()

    def _end_abort(self) -> None:
        assert self._verdict is not None
        self._stage = _Stage.INTERRUPTING
        self._again_s = _AGAIN_S
        self.again_at = self.aborted_at = time.monotonic()
        self._gate.let_raise()
        self._inbox.put(self._verdict)

    def _interrupt(self) -> None:
        """Interrupt the user's thread if it is time to, and say when to do so again."""
        log_swallower(self._gate)
        if self._inbox.is_taken:
            self._stage = _Stage.DONE
            self.again_at = 0.0
            return
        now = time.monotonic()
        if now >= self.again_at:
            self._interrupter.interrupt()
            if self._again_s >= _INSIST_S:
                self._insist()
            self.again_at = now + self._again_s
            if not self._gate.refused:
                self._again_s = min(2 * self._again_s, _LONGEST_S)
        if self._gate.refused:
            self.again_at = min(self.again_at, now + _SOON_S)


def log_swallower(gate: Gate) -> None:
    """Name the code that has kept an interruption to itself, if any has."""
    if (culprit := gate.take_swallower()) is not None:
        _log.warning(
            "%s has caught RankShouldRestart without raising it on; the rank is interrupted again, "
            "and ended by the hard timeout if that goes on",
            culprit,
        )
