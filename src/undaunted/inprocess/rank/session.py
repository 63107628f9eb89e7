"""The objects that one call of a wrapped function needs in its process."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import os
import socket
from typing import TYPE_CHECKING, Any

from undaunted.inprocess import threads
from undaunted.inprocess.core.messages import Enter
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.exception import RestartAbort
from undaunted.inprocess.guard import start
from undaunted.inprocess.guard.directory import host_for_ranks
from undaunted.inprocess.rank import guard_link
from undaunted.inprocess.rank.epoch_store import EpochStore
from undaunted.inprocess.rank.evidence import Witness
from undaunted.inprocess.rank.guard_link import GuardLink, LostGuard, StoppedGuard
from undaunted.inprocess.rank.interrupt import Gate, Interrupter
from undaunted.inprocess.rank.verdict import Inbox, Termination
from undaunted.inprocess.rank.watcher import Wake, Watcher
from undaunted.inprocess.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.inprocess.core.messages import Record
    from undaunted.inprocess.parameters import Parameters
    from undaunted.inprocess.rank.page import Page
    from undaunted.inprocess.rank.verdict import Verdict

# Set by `undaunted run` for a process that takes the place of a lost one.
REJOIN = "UNDAUNTED_INPROCESS_REJOIN"


class _OneAtATime:
    """A process takes part in one call at a time; a forked child has taken part in none."""

    def __init__(self) -> None:
        self._holder = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Take part in a call.

        Raises:
            RestartAbort: this process is in a call already.
        """
        if self._holder == os.getpid():
            raise RestartAbort(
                "a wrapped function is running in this process: do not call one inside of another, "
                "or in two threads at once"
            )
        self._holder = os.getpid()
        try:
            yield
        finally:
            self._holder = 0


_ONE_AT_A_TIME = _OneAtATime()
# Longest wait, at the end of a call, for threads that release objects of torch.
_SETTLE_S = 1.0
_STORE_TIMEOUT = dt.timedelta(seconds=300)


class Session:
    """The objects of one call.

    Attributes:
        link: of the process to its guard; outlives the call.
        call: number of the call, from 0.
        rejoins: the process takes the place of a lost one, and has not heard a record yet, from
            which it learns the number of the others' call.
        all_active: all ranks call the function, as the rank assignment does not choose any.
        page: of the link.
        gate, inbox, store, termination, interrupter, witness: of this call.
        wake: wakes the watcher.
    """

    def __init__(
        self,
        parameters: Parameters,
        base_store: Any,
        *,
        abort: Callable[[], None],
        message_of: Callable[[Verdict], str],
    ) -> None:
        """Connect to the guard and begin the call; the watcher listens from now on.

        Args:
            parameters: of the wrapper.
            base_store: result of a custom `store_factory`, None = there is none.
            abort: aborts communication; must not raise.
            message_of: returns the text of the interruption for a verdict.

        Raises:
            InternalError: there is no guard.
            RestartAbort: this process is in a call already; to try again would not help.
        """
        with contextlib.ExitStack() as undo:
            undo.enter_context(_ONE_AT_A_TIME.held())
            undo.callback(threads.settle, _SETTLE_S)
            self.link = guard_link.current() or guard_link.replace(
                lambda: _connect(parameters, base_store)
            )
            self.call = self.link.calls
            self.all_active = False
            self.rejoins = self.call == 0 and bool(os.environ.get(REJOIN))
            self.page = self.link.page
            self.wake = Wake()
            undo.callback(self.wake.close)
            self.inbox = Inbox()
            self.gate = Gate(self.page, self.wake)
            self.interrupter = Interrupter(self.gate, self.wake)
            self.store = _store(parameters, base_store, self.link.job_size)
            undo.callback(self.store.close)
            self.witness = Witness(self.link, parameters.soft_timeout.total_seconds())
            self.termination = Termination(
                self.inbox,
                self.gate,
                self.interrupter,
                self.wake,
                abort=abort,
                insist=lambda: self.store.break_off(surely=True),
                lost_guard=_lost_guard(self.page, parameters),
                message_of=message_of,
                witness=self.witness,
            )
            watcher = Watcher(
                self.link,
                self.page,
                self.inbox,
                self.store,
                self.wake,
                termination=self.termination,
                call=None if self.rejoins else self.call,
                interval_s=parameters.progress_watchdog_interval.total_seconds(),
                look=_stopped_guard(self.link.guard.pid, parameters).look,
            )
            undo.enter_context(_collecting_what_is_new())
            self.page.enter_call(self.call)
            undo.callback(self.page.set_phase, Phase.OUTSIDE)
            self.interrupter.install()
            undo.callback(self.interrupter.remove)
            self._enter(parameters)
            watcher.start()
            undo.callback(watcher.close)
            self._undo = undo.pop_all()

    def _enter(self, parameters: Parameters) -> None:
        known = self.link
        enter = Enter(
            call=self.call,
            job_rank=known.job_rank,
            world_size=known.job_size,
            pid=os.getpid(),
            node=socket.gethostname(),
            limits=parameters.limits(),
            repeats=parameters.max_identical_faults or 0,
            rejoin=self.rejoins,
        )
        known.send(enter, known.page.fd if known.calls == 0 else None)
        known.calls += 1

    def take_up(self, record: Record) -> None:
        """Take part in an epoch; a process that rejoins enters the others' call with it."""
        if self.rejoins:
            self.rejoins = False
            self.call = record.call
            self.link.calls = record.call + 1
            self.page.enter_call(record.call)
        self.page.enter_epoch(record.epoch)

    def close(self) -> None:
        """Give back everything but the link."""
        self._undo.close()


@contextlib.contextmanager
def _collecting_what_is_new() -> Iterator[None]:
    """Have the garbage collector skip the objects that exist already.

    To look at all objects of torch takes a tenth of a second, in every restart.
    """
    if gc.get_freeze_count():  # somebody else does it
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _connect(parameters: Parameters, base_store: Any) -> GuardLink:
    first = State.from_env()
    options = start.Options(
        job_rank=first.rank,
        world_size=first.world_size,
        heartbeat_interval_s=parameters.heartbeat_interval.total_seconds(),
        heartbeat_timeout_s=parameters.heartbeat_timeout.total_seconds(),
        barrier_timeout_s=parameters.barrier_timeout.total_seconds(),
        store_kwargs=parameters.store_kwargs or {},
        logfile=parameters.monitor_process_logfile or "",
        pidfile=parameters.monitor_process_pidfile or "",
    )
    sock = start.connect(options, base_store=base_store)
    return GuardLink(sock, first.rank, first.world_size)


def _lost_guard(page: Page, parameters: Parameters) -> LostGuard:
    """Return the limit for leaving without a guard: the same as a guard would set."""
    limit = parameters.hard_timeout + parameters.termination_grace_time
    return LostGuard(page, limit.total_seconds())


def _stopped_guard(pid: int, parameters: Parameters) -> StoppedGuard:
    """Return the watch that kills a stopped guard when the others count the rank as lost."""
    looks = parameters.heartbeat_timeout / parameters.progress_watchdog_interval
    return StoppedGuard(start.own_guard(pid), round(looks))


def _store(parameters: Parameters, base_store: Any, job_size: int) -> EpochStore:
    timeout = (parameters.store_kwargs or {}).get("timeout", _STORE_TIMEOUT)
    return EpochStore(host_for_ranks(os.environ, job_size), timeout, base_store)
