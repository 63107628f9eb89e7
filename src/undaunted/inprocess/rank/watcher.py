"""The thread beside the user's thread: listens to the guard, and shows that the interpreter turns.

The interpreter turns if the main thread runs a pending call between two bytecodes. The pending call
is a function of the C library that raises a semaphore: no Python code gets into the user's code.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING

from undaunted.inprocess.core.messages import Dismissed, End, Finished, Record, Stop
from undaunted.inprocess.rank.forks import forget_in_children
from undaunted.inprocess.rank.guard_link import GuardLinkError
from undaunted.inprocess.rank.verdict import Broken

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.core.messages import ToRank
    from undaunted.inprocess.rank.epoch_store import EpochStore
    from undaunted.inprocess.rank.guard_link import GuardLink
    from undaunted.inprocess.rank.page import Page
    from undaunted.inprocess.rank.verdict import Inbox, Termination

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


class Watcher:
    """The thread of one call. `start` and `close` are for its owner; the rest runs in it."""

    def __init__(  # noqa: PLR0913 - made in one place, by name
        self,
        link: GuardLink,
        page: Page,
        inbox: Inbox,
        store: EpochStore,
        wake: Wake,
        *,
        termination: Termination,
        call: int | None,
        interval_s: float,
        look: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            link: to the guard.
            page: is stamped.
            inbox: where records are put.
            store: of the epoch; its server is made when the first client connects.
            wake: wakes this thread.
            termination: carries out verdicts.
            call: number of this call; messages of other calls are dropped. None = the number in the
                first record that comes.
            interval_s: how often the page is stamped, seconds.
            look: called as often.
        """
        self._link = link
        self._page = page
        self._inbox = inbox
        self._store = store
        self._wake = wake
        self._termination = termination
        self._call = call
        self._interval_s = interval_s
        self._look = look
        self._epoch = -1
        self._closing = False
        self._asked_to_turn = False
        self._thread = threading.Thread(target=self._run, name="undaunted-inprocess")

    # --- for the owner ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and wait for the thread's end, which comes soon: it never blocks."""
        self._closing = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._listen_until_closed()
        except BaseException as error:  # noqa: BLE001 - the user's thread must not wait for ever
            _log.exception("the watcher of in-process restart has failed")
            self._inbox.put(Broken(f"the watcher has failed: {error!r}"))

    def _listen_until_closed(self) -> None:
        poll = select.poll()
        poll.register(self._wake.fd, select.POLLIN)
        poll.register(self._link.fileno(), select.POLLIN)
        stamp_at = 0.0
        served = -1
        while not self._closing:
            now = time.monotonic()
            if now >= stamp_at:
                self._stamp()
                self._look()
                stamp_at = now + self._interval_s
            served = _poll_also(poll, served, self._store.listening_fd)
            until = min(stamp_at, self._termination.again_at or stamp_at)
            ready = [fd for fd, _ in poll.poll(max(0.0, until - now) * 1000)]
            if self._wake.fd in ready:
                os.eventfd_read(self._wake.fd)
            if self._link.fileno() in ready and not self._listen():
                poll.unregister(self._link.fileno())
            if served in ready and self._store.listening_fd == served:
                self._serve()
            self._termination.go_on()

    def _stamp(self) -> None:
        if _has_turned():
            self._page.turned()
            self._asked_to_turn = False
        if not self._asked_to_turn:  # the queue of calls is short, and not ours alone
            self._asked_to_turn = _ask_to_turn()

    def _listen(self) -> bool:
        """Take the guard's messages. False = the guard is gone."""
        try:
            for message in self._link.receive():
                self._take(message)
        except GuardLinkError as error:
            self._termination.rule(Broken(str(error)))
            return False
        return True

    def _serve(self) -> None:
        """A client has connected to the epoch's store: make the server."""
        try:
            self._store.serve()
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
                    self._termination.rule(message)
            case End() | Dismissed():
                self._termination.rule(message)

    def _begin(self, record: Record) -> None:
        self._epoch = record.epoch
        self._termination.begin_epoch()
        self._inbox.put(record)


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
    """Whether the main thread's interpreter has turned since the last call of this function."""
    turned = False
    while _libc.sem_trywait(_semaphore) == 0:
        turned = True
    return turned
