"""The thread beside the user's thread: listens to the guard, and shows that the interpreter turns.

It also carries out the verdict on an epoch, in this order: the user's code leaves `atomic`;
communication is aborted, in another thread, as an abort may hang; the verdict is put into the
inbox; the user's thread is interrupted until it has left the user's code.

The interpreter turns if the main thread runs a pending call between two bytecodes. The pending call
is a function of the C library that raises a semaphore: no Python code gets into the user's code.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from undaunted.base import threads
from undaunted.inprocess.attribution import (
    Interruption,
    InterruptionRecord,
    format_interruption_records,
)
from undaunted.inprocess.core.messages import Dismissed, End, Finished, Record, Stop
from undaunted.inprocess.rank.forks import forget_in_children
from undaunted.inprocess.rank.guard_link import GuardLinkError, LostGuard, StoppedGuard

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.arguments import Arguments
    from undaunted.inprocess.core.messages import ToRank
    from undaunted.inprocess.rank.epoch_store import EpochStore
    from undaunted.inprocess.rank.evidence import Witness
    from undaunted.inprocess.rank.guard_link import GuardLink
    from undaunted.inprocess.rank.interrupt import Gate, Interrupter
    from undaunted.inprocess.rank.page import Page

# Seconds until a thread is interrupted again: where its code must not be interrupted at that place,
# and where it has caught the interruption.
_SOON_S = 0.002
_AGAIN_S = 0.05
_LONGEST_S = 1.0
# After a pause this long, in seconds, the thread may have begun to wait for other ranks again.
_INSIST_S = 0.2

_log = logging.getLogger("undaunted")

_SEM_BYTES = 32  # sizeof(sem_t), on 64 bits; smaller elsewhere
_libc = ctypes.CDLL(None, use_errno=True)
# Never freed: a blocked interpreter may make the pending call long after the end of the watcher.
_semaphore = ctypes.create_string_buffer(_SEM_BYTES)
_libc.sem_init(_semaphore, 0, 0)
_sem_post = ctypes.cast(_libc.sem_post, ctypes.c_void_p)


class Wake:
    """Wakes the watcher from any thread, and from signal handlers. Owns an eventfd."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.RLock()  # a signal handler may come into its own thread's call
        forget_in_children(self)

    def __call__(self) -> None:
        """Wake it."""
        # An abort may hang until after the end of the call; the number is another file's then.
        with self._lock:
            if self.fd >= 0:
                with contextlib.suppress(OSError):  # it is full of wakes
                    os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            self.after_fork()

    def after_fork(self) -> None:
        """In a child, where nobody gives a lock back that another thread had."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


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
        """Return whether the user's thread has taken the verdict."""
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


class Watched(Protocol):
    """The parts of a call that a watcher uses; see `loop.EpochLoop`."""

    arguments: Arguments
    call: int
    rejoins: bool
    link: GuardLink
    page: Page
    inbox: Inbox
    gate: Gate
    interrupter: Interrupter
    store: EpochStore
    witness: Witness
    wake: Wake

    def abort(self) -> None:
        """Abort communication; may hang, and must not raise."""


class Watcher:
    """The thread of one call. `start` and `close` are for its owner; the rest runs in it.

    Attributes:
        ruled_at: when the last verdict came that stops an epoch, seconds of the monotonic clock.
        aborted_at: when communication was aborted for it.
    """

    def __init__(self, loop: Watched) -> None:
        """Prepare.

        Args:
            loop: the call, whose objects it uses; messages of other calls are dropped.
        """
        given = loop.arguments
        looks = given.heartbeat_timeout / given.progress_watchdog_interval
        left = given.hard_timeout + given.termination_grace_time  # as a guard would grant
        self.ruled_at = self.aborted_at = 0.0
        self._loop = loop
        # None = the number in the first record that comes.
        self._call = None if loop.rejoins else loop.call
        self._interval_s = given.progress_watchdog_interval.total_seconds()
        own = loop.link.guard if loop.link.own else None
        self._stopped_guard = StoppedGuard(own, round(looks))
        self._lost_guard = LostGuard(loop.page, left.total_seconds())
        self._epoch = -1
        self._closing = False
        self._asked_to_turn = False
        self._stage = _Stage.DONE
        self._verdict: Verdict | None = None
        self._aborted = threading.Event()
        self._again_at = 0.0  # when to call `_go_on` at the latest, 0 = at the next event
        self._again_s = _AGAIN_S
        self._thread = threading.Thread(target=self._run, name="undaunted-inprocess")

    # --- for the owner ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and wait for the thread's end, which comes soon: it never blocks."""
        self._closing = True
        self._loop.wake()
        if self._thread.ident is not None:
            self._thread.join()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._listen_until_closed()
        except BaseException as error:  # noqa: BLE001 - the user's thread must not wait for ever
            _log.exception("the watcher of in-process restart has failed")
            self._loop.inbox.put(Broken(f"the watcher has failed: {error!r}"))

    def _listen_until_closed(self) -> None:
        poll = select.poll()
        poll.register(self._loop.wake.fd, select.POLLIN)
        poll.register(self._loop.link.fileno(), select.POLLIN)
        stamp_at = 0.0
        served = -1
        while not self._closing:
            now = time.monotonic()
            if now >= stamp_at:
                self._stamp()
                self._stopped_guard.look()
                stamp_at = now + self._interval_s
            served = _poll_also(poll, served, self._loop.store.listening_fd)
            until = min(stamp_at, self._again_at or stamp_at)
            ready = [fd for fd, _ in poll.poll(max(0.0, until - now) * 1000)]
            if self._loop.wake.fd in ready:
                os.eventfd_read(self._loop.wake.fd)
            if self._loop.link.fileno() in ready and not self._listen():
                poll.unregister(self._loop.link.fileno())
            if served in ready and self._loop.store.listening_fd == served:
                self._serve()
            self._go_on()

    def _stamp(self) -> None:
        if _has_turned():
            self._loop.page.turned()
            self._asked_to_turn = False
        if not self._asked_to_turn:  # the queue of calls is short, and not ours alone
            self._asked_to_turn = _ask_to_turn()

    def _listen(self) -> bool:
        """Take the guard's messages. False = the guard is gone."""
        try:
            for message in self._loop.link.receive():
                self._take(message)
        except GuardLinkError as error:
            self._rule(Broken(str(error)))
            return False
        return True

    def _serve(self) -> None:
        """A client has connected to the epoch's store: make the server."""
        try:
            self._loop.store.serve()
        except Exception:  # noqa: BLE001 - the client gets an error
            _log.exception("the store of the epoch cannot be served")

    def _take(self, message: ToRank) -> None:
        if self._call is None and isinstance(message, Record):
            self._call = message.call
        if message.call != self._call and self._call is not None:
            return
        match message:
            case Record(epoch=epoch):
                if epoch > self._epoch:
                    self._begin(message)
            case Stop(epoch=epoch) | Finished(epoch=epoch):
                if epoch == self._epoch:
                    self._rule(message)
            case End() | Dismissed():
                self._rule(message)

    def _begin(self, record: Record) -> None:
        self._epoch = record.epoch
        self._stage = _Stage.LISTENING
        self._again_at = 0.0
        self._loop.inbox.put(record)

    # --- the verdict ------------------------------------------------------------------------------

    def _rule(self, verdict: Verdict) -> None:
        """Take a verdict: the first one of an epoch, or one that ends the call."""
        if isinstance(verdict, Broken):
            self._lost_guard.begin()
        if self._stage is _Stage.LISTENING and not isinstance(verdict, Finished):
            self._verdict = verdict
            self._stage = _Stage.ATOMIC
            self.ruled_at = time.monotonic()
            if isinstance(verdict, Stop) and verdict.hang:
                self._loop.witness.tell(verdict.call, verdict.epoch)
        elif self._stage in (_Stage.ATOMIC, _Stage.ABORTING):
            if not isinstance(verdict, Stop):
                self._verdict = verdict
        elif not isinstance(verdict, Stop):
            self._loop.inbox.put(verdict)

    def _go_on(self) -> None:
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
        if self._loop.gate.terminate(message_of(self._verdict)):
            self._stage = _Stage.ABORTING
            self._aborted.clear()
            threads.start(self._abort_and_wake, "abort")

    def _abort_and_wake(self) -> None:
        try:
            self._loop.witness.wait()
            self._loop.abort()
        finally:
            self._aborted.set()
            self._loop.wake()

    def _end_abort(self) -> None:
        assert self._verdict is not None
        self._stage = _Stage.INTERRUPTING
        self._again_s = _AGAIN_S
        self._again_at = self.aborted_at = time.monotonic()
        self._loop.gate.let_raise()
        self._loop.inbox.put(self._verdict)

    def _interrupt(self) -> None:
        """Interrupt the user's thread if it is time, and set the time of the next interruption."""
        log_swallower(self._loop.gate)
        if self._loop.inbox.is_taken:
            self._stage = _Stage.DONE
            self._again_at = 0.0
            return
        now = time.monotonic()
        if now >= self._again_at:
            self._loop.interrupter.interrupt()
            if self._again_s >= _INSIST_S:
                self._loop.store.break_off(surely=True)  # it may have begun to wait there late
            self._again_at = now + self._again_s
            if not self._loop.gate.refused:
                self._again_s = min(2 * self._again_s, _LONGEST_S)
        if self._loop.gate.refused:
            self._again_at = min(self._again_at, now + _SOON_S)


def message_of(verdict: Verdict) -> str:
    """Return the text of the interruption for a verdict."""
    if not isinstance(verdict, Stop):
        return getattr(verdict, "text", "")
    return format_interruption_records(
        InterruptionRecord(reason.rank if reason.rank >= 0 else reason.job_rank, _kind(reason.kind))
        for reason in verdict.reasons
    )


def _kind(name: str) -> Interruption:
    known = Interruption.__members__
    return known.get(name, Interruption.MONITOR_PROCESS_EXCEPTION)


def log_swallower(gate: Gate) -> None:
    """Log the name of the code that has caught an interruption, if there is any."""
    if (culprit := gate.take_swallower()) is not None:
        _log.warning(
            "%s has caught RankShouldRestart without raising it on; the rank is interrupted again, "
            "and ended by the hard timeout if that goes on",
            culprit,
        )


def _poll_also(poll: select.poll, before: int, fd: int) -> int:
    """Listen to ``fd`` in place of ``before``; -1 = to none."""
    if before != fd and before >= 0:
        with contextlib.suppress(KeyError):
            poll.unregister(before)
    if fd >= 0:
        poll.register(fd, select.POLLIN)
    return fd


def _ask_to_turn() -> bool:
    """Ask the main thread's interpreter to raise the semaphore when it turns; False = no room."""
    added: int = ctypes.pythonapi.Py_AddPendingCall(_sem_post, ctypes.byref(_semaphore))
    return added == 0


def _has_turned() -> bool:
    """Return whether the main thread's interpreter has turned since the last call of this."""
    turned = False
    while _libc.sem_trywait(_semaphore) == 0:
        turned = True
    return turned
