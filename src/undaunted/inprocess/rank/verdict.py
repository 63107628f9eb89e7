"""The verdict on an epoch: `Termination` carries it out, `Inbox` hands it to the user's thread.

In this order: the user's code leaves `atomic`; communication is aborted, in a thread of its own, as
an abort may hang; the verdict is put into the inbox; the user's thread is interrupted until it has
left the user's code.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from undaunted.inprocess import threads
from undaunted.inprocess.core.messages import Dismissed, End, Finished, Record, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.rank.evidence import Witness
    from undaunted.inprocess.rank.guard_link import LostGuard
    from undaunted.inprocess.rank.interrupt import Gate, Interrupter

# Seconds until a thread is interrupted again: where its code must not be interrupted at that place,
# and where it has caught the interruption.
_SOON_S = 0.002
_AGAIN_S = 0.05
_LONGEST_S = 1.0
# After a pause this long, in seconds, the thread may have begun to wait for other ranks again.
_INSIST_S = 0.2

_log = logging.getLogger("undaunted")


class Broken(msgspec.Struct, frozen=True):
    """The guard is gone: no message comes any more."""

    text: str


T = TypeVar("T")

# How an epoch ends for a rank.
Verdict = Stop | Finished | End | Dismissed | Broken
# After these, there is no other one.
LAST = (Finished, End, Dismissed, Broken)


class Inbox:
    """The record and the verdict of the epoch that is on, for the user's thread. Of one call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._record: Record | None = None
        self._verdict: Verdict | None = None
        self._taken = False

    def begin_epoch(self) -> None:
        """Forget the verdict on the epoch that is over; the end of the call stays."""
        with self._changed:
            self._record = None
            if isinstance(self._verdict, Stop):
                self._verdict = None

    def put(self, news: Record | Verdict) -> None:
        """Put a record, or a verdict on the present epoch. The last one counts."""
        with self._changed:
            if isinstance(news, Record):
                self._record = news
                self._taken = False
            elif not isinstance(self._verdict, LAST):
                self._verdict = news
            self._changed.notify_all()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the present epoch, None = there is none yet."""
        return self._verdict

    def wait_for_record(self, timeout_s: float | None) -> Record | Verdict | None:
        """Return the record, or the verdict if the call has ended; None = time is over.

        The record of an epoch that is stopped already is returned too: the rank enters the epoch,
        and leaves it at once.
        """

        def look() -> Record | Verdict | None:
            return self._verdict if isinstance(self._verdict, LAST) else self._record

        return self._wait(look, timeout_s)

    def wait_for_verdict(self, timeout_s: float | None) -> Verdict | None:
        """Return the verdict; None = time is over."""

        def look() -> Verdict | None:
            return self._verdict

        verdict = self._wait(look, timeout_s)
        self._taken = verdict is not None
        return verdict

    @property
    def is_taken(self) -> bool:
        """Whether the user's thread has taken the verdict."""
        return self._taken

    def _wait(self, look: Callable[[], T], timeout_s: float | None) -> T:
        with self._changed:
            self._changed.wait_for(look, timeout_s)
            return look()


class _Stage(enum.Enum):
    LISTENING = enum.auto()  # the epoch runs
    ATOMIC = enum.auto()  # there is a verdict, but the user's code is in `atomic`
    ABORTING = enum.auto()
    INTERRUPTING = enum.auto()
    DONE = enum.auto()  # no epoch runs


class Termination:
    """Carries out the verdicts of one call; used in the watcher's thread.

    Attributes:
        ruled_at: when the last verdict came that stops an epoch, seconds of the monotonic clock.
        aborted_at: when communication was aborted for it.
        again_at: when to call `go_on` again at the latest, 0 = at the next event.
    """

    def __init__(  # noqa: PLR0913 - made in one place, by name
        self,
        inbox: Inbox,
        gate: Gate,
        interrupter: Interrupter,
        wake: Callable[[], None],
        *,
        abort: Callable[[], None],
        insist: Callable[[], None],
        lost_guard: LostGuard,
        message_of: Callable[[Verdict], str],
        witness: Witness,
    ) -> None:
        """Prepare.

        Args:
            inbox: where verdicts are put.
            gate: of the user's thread.
            interrupter: of the user's thread.
            wake: has the watcher call `go_on`.
            abort: aborts communication; may hang, and must not raise.
            insist: called again and again when the user's thread does not leave the user's code: it
                may have begun to wait for other ranks after the abort.
            lost_guard: ends this process in place of a guard that is gone.
            message_of: returns the text of the interruption for a verdict.
            witness: says what the rank does when there is a hang.
        """
        self.ruled_at = self.aborted_at = self.again_at = 0.0
        self._inbox = inbox
        self._gate = gate
        self._interrupter = interrupter
        self._wake = wake
        self._abort = abort
        self._insist = insist
        self._lost_guard = lost_guard
        self._message_of = message_of
        self._witness = witness
        self._stage = _Stage.DONE
        self._verdict: Verdict | None = None
        self._aborted = threading.Event()
        self._again_s = _AGAIN_S

    def begin_epoch(self) -> None:
        """A record has come."""
        self._stage = _Stage.LISTENING
        self.again_at = 0.0

    def rule(self, verdict: Verdict) -> None:
        """Take a verdict: the first one of an epoch, or one that ends the call."""
        if isinstance(verdict, Broken):
            self._lost_guard.begin()
        if self._stage is _Stage.LISTENING and not isinstance(verdict, Finished):
            self._verdict = verdict
            self._stage = _Stage.ATOMIC
            self.ruled_at = time.monotonic()
            if isinstance(verdict, Stop) and verdict.hang:
                self._witness.tell(verdict.call, verdict.epoch)
        elif self._stage in (_Stage.ATOMIC, _Stage.ABORTING):
            if not isinstance(verdict, Stop):
                self._verdict = verdict
        elif not isinstance(verdict, Stop):
            self._inbox.put(verdict)

    def go_on(self) -> None:
        """Do the next steps of the verdict, as far as they are possible now."""
        if self._stage is _Stage.ATOMIC:
            self._begin_abort()
        if self._stage is _Stage.ABORTING and self._aborted.is_set():
            self._end_abort()
        if self._stage is _Stage.INTERRUPTING:
            self._interrupt()
        self._lost_guard.end_if_due()

    def _begin_abort(self) -> None:
        assert self._verdict is not None
        if self._gate.terminate(self._message_of(self._verdict)):
            self._stage = _Stage.ABORTING
            self._aborted.clear()
            threads.start(self._abort_and_wake, "abort")

    def _abort_and_wake(self) -> None:
        try:
            self._witness.wait()
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
        """Interrupt the user's thread if it is time, and set the time of the next interruption."""
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
    """Log the name of the code that has caught an interruption, if there is any."""
    if (culprit := gate.take_swallower()) is not None:
        _log.warning(
            "%s has caught RankShouldRestart without raising it on; the rank is interrupted again, "
            "and ended by the hard timeout if that goes on",
            culprit,
        )
