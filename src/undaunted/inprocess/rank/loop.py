"""One call in one rank: its objects, and its epochs from the first record to the end of the call.

An *epoch* is what the ranks agree on: it begins with a record, and ends when it is stopped or the
call ends. An *iteration* is the same for users: one run of their function. Both have the same
number, from 0. In the code it is an epoch; in `State`, plug-ins and text for users an iteration.

docs/design/inprocess.md, "One rank", describes the order of events.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import logging
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from undaunted.base import reentry, threads
from undaunted.inprocess.attribution import Interruption
from undaunted.inprocess.communication import c10d, creation
from undaunted.inprocess.core.messages import (
    Completed,
    Dismissed,
    End,
    Enter,
    Fault,
    Finished,
    Join,
    Leave,
    Record,
    Stop,
)
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.exception import (
    BarrierTimeout,
    HealthCheckError,
    InternalError,
    RankShouldRestart,
    RestartAbort,
)
from undaunted.inprocess.guard import start
from undaunted.inprocess.guard.meeting import host_for_ranks
from undaunted.inprocess.rank import failures, guard_link
from undaunted.inprocess.rank.epoch_store import EpochStore
from undaunted.inprocess.rank.evidence import Witness
from undaunted.inprocess.rank.guard_link import GuardLink, GuardLinkError
from undaunted.inprocess.rank.interrupt import Gate, Interrupter
from undaunted.inprocess.rank.watcher import LAST, Broken, Inbox, Wake, Watcher, log_swallower
from undaunted.inprocess.rank_assignment import (
    RankAssignmentCtx,
    RankDiscarded,
    activate,
)
from undaunted.inprocess.state import Mode, State
from undaunted.progress.writer import last_iteration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.inprocess.arguments import Arguments
    from undaunted.inprocess.rank.watcher import Verdict

# Set by `undaunted run` for a process that takes the place of a lost one.
REJOIN = "UNDAUNTED_INPROCESS_REJOIN"
# Longest wait, at the end of a call, for threads that release objects of torch.
_SETTLE_S = 1.0
_STORE_TIMEOUT = dt.timedelta(seconds=300)


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


class EpochLoop:
    """One call in this rank: its objects, and its epochs.

    The user's code runs in the thread that makes it and calls `run`.

    Attributes:
        arguments: of the wrapper.
        state: ranks, sizes and iteration of this process.
        link: of the process to its guard; outlives the call.
        call: number of the call, from 0.
        rejoins: the process takes the place of a lost one, and has not heard a record yet, from
            which it learns the number of the others' call.
        page: of the link.
        gate, inbox, store, interrupter, witness: of this call.
        wake: wakes the watcher.
    """

    def __init__(self, arguments: Arguments) -> None:
        """Connect to the guard and begin the call; the watcher listens from now on.

        Raises:
            InternalError: there is no guard.
            RestartAbort: this process is in a call already; to try again would not help.
            Exception: any error of a custom ``store_factory``.
        """
        known = guard_link.current()
        self.arguments = arguments
        self.state = State.from_env() if known is None else State(known.rank, known.world_size)
        self._limits = arguments.limits()
        self._restart_health_check = arguments.restart_health_check
        self._all_active = False  # the rank assignment does not choose who calls the function
        self._error: BaseException | None = None  # that ended the function in this epoch
        self._outer = sys.exc_info()[1]
        self._furthest = 0  # of the numbers of `undaunted.step`
        self._result: Any = None
        self._phases: dict[str, float] = {}
        self._called_ns = time.monotonic_ns()  # when the function was
        self._tag = "other_ex"  # of the code that runs, for log lines
        base_store = arguments.make_base_store()
        with contextlib.ExitStack() as undo:
            undo.enter_context(_ONE_AT_A_TIME.held())
            undo.callback(threads.settle, _SETTLE_S)
            self.link = guard_link.current() or guard_link.replace(
                lambda: _connect(arguments, base_store)
            )
            self.call = self.link.calls
            self.rejoins = self.call == 0 and bool(os.environ.get(REJOIN))
            self.page = self.link.page
            self.wake = Wake()
            undo.callback(self.wake.close)
            self.inbox = Inbox()
            self.gate = Gate(self.page, self.wake)
            self.interrupter = Interrupter(self.gate, self.wake)
            self.store = _store(arguments, base_store, self.link.job_size)
            undo.callback(self.store.close)
            self.witness = Witness(self.link, self._limits.soft_timeout)
            self._watcher = Watcher(self)
            undo.enter_context(_collecting_what_is_new())
            self.page.enter_call(self.call)
            undo.callback(self.page.set_phase, Phase.OUTSIDE)
            self.interrupter.install()
            undo.callback(self.interrupter.remove)
            self._enter()
            self._watcher.start()
            undo.callback(self._watcher.close)
            self._undo = undo.pop_all()
        self.state.initial_rank = self.link.job_rank
        self.state.initial_world_size = self.link.job_size

    def _enter(self) -> None:
        link = self.link
        enter = Enter(
            call=self.call,
            job_rank=link.job_rank,
            world_size=link.job_size,
            pid=os.getpid(),
            node=socket.gethostname(),
            limits=self._limits,
            repeats=self.arguments.max_identical_faults or 0,
            rejoin=self.rejoins,
        )
        link.send(enter, self.page.fd if link.calls == 0 else None)
        link.calls += 1

    def close(self) -> None:
        """Give back everything but the link."""
        self._undo.close()
        self._result = self._error = self._outer = None  # what they hold need not wait for us

    def run(self, function: Callable[[], Any]) -> Any:
        """Run the function until all ranks have completed it, and return its result.

        Raises:
            RestartAbort: the call is given up in all ranks.
            RestartError: this rank cannot go on; the message says why.
            BaseException: another error that is fatal for this rank.
        """
        try:
            self.state.iteration = 0
            while True:
                self._join()
                self._execute(function)
                if isinstance(self._wait(), Finished):
                    break
                self._recover()
        except BaseException as error:
            self._leave(error)
            raise
        self.page.set_phase(Phase.OUTSIDE)
        self._complete()
        result, self._result = self._result, None
        return result

    # --- the next epoch ---------------------------------------------------------------------------

    def _join(self) -> None:
        """Join the epoch, and take up its record."""
        self.page.set_phase(Phase.WAITING)
        self.page.set_unguarded(0)  # an interruption may have left such a section half
        self.inbox.begin_epoch()
        self.gate.reset()
        self.link.send(self._ready())
        longest = self._limits.longest_wait_s(self._limits.barrier_timeout)
        # A process that takes the place of a lost one waits until the others are restarted.
        news = self.inbox.wait_for_record(None if self.rejoins else longest)
        if not isinstance(news, Record):
            raise self._ending(news, "the record of the next iteration")
        self._take_up(news)
        self.page.set_phase(Phase.RECOVERING)
        self.state.iteration = news.epoch
        serve = news.members[0] == self.link.job_rank
        self.store.begin(self._prefix(), news.store, serve=serve)
        if serve:
            self.wake()
        self.state.fn_exception = None
        self._assign(news)
        failures.log_restart(news, self.state.rank)
        reentry.enter(failures.reentry_of(news, self._called_ns))

    def _take_up(self, record: Record) -> None:
        """Take part in an epoch; a process that rejoins enters the others' call with it."""
        if self.rejoins:
            self.rejoins = False
            self.call = record.call
            self.link.calls = record.call + 1
            self.page.enter_call(record.call)
        self.page.enter_epoch(record.epoch)

    def _ready(self) -> Join:
        state = self.state
        self._furthest = max(self._furthest, last_iteration() or 0)
        return Join(
            call=self.call,
            job_rank=self.link.job_rank,
            epoch=state.iteration,
            rank=-1 if self.rejoins else state.rank,
            world_size=state.world_size,
            store=self.store.address(),
            info=_wanted_info(self.arguments.rank_assignment, state),
            progress=self.page.pings + self._furthest,
            phases=self._phases,
        )

    def _assign(self, record: Record) -> None:
        """Give this process its rank of the epoch, in `state` and in the environment.

        Raises:
            RankDiscarded: the rank assignment has left it out.
            RestartAbort: no rank would call the function.
            Exception: any error of the rank assignment.
        """
        state = self.state
        state.world_size = record.world_size
        if record.joined:
            state.forget_assignment()
            state.rank = record.joined.get(self.link.job_rank, state.rank)
        context = _LazyContext(state, self.store, set(record.terminated), record.info or None)
        state.copy_from(self.arguments.rank_assignment(context).state)
        if self._all_active or state.mode is Mode.INITIALIZED:
            self._all_active = True  # the assignment only gives ranks; a filter may do the rest
            activate(state, state.world_size)
        if self.arguments.rank_filter is not None:
            state.copy_from(self.arguments.rank_filter(state))
        if state.active_world_size == 0:
            raise RestartAbort(
                "no rank is active: rank assignment and filter leave none of "
                f"{state.world_size} ranks that would call the function"
            )
        state.set_distributed_vars()
        self.link.keep(state.rank, state.world_size)
        self.page.assigned(state.rank)

    # --- the user's code --------------------------------------------------------------------------

    def _execute(self, function: Callable[[], Any]) -> None:
        self.witness.reserve = self.state.mode is not Mode.ACTIVE
        self.page.set_phase(Phase.RUNNING)
        self._called_ns = time.monotonic_ns()
        try:
            with creation.watch(self._prefix(), {self.store.port}):
                self._result = self.gate.run(
                    lambda: self._call_user(function), self.interrupter.clear
                )
        except (Exception, RankShouldRestart) as error:  # noqa: BLE001 - all of them are restarted from
            self.page.set_phase(Phase.WAITING)
            self._has_failed(error)
        else:
            self.page.set_phase(Phase.WAITING)
            reserve = self.state.mode is not Mode.ACTIVE
            self._say(Completed(*self._message_ids(), reserve=reserve))
        finally:
            self._phases = {"interrupted_at": time.monotonic()}
            log_swallower(self.gate)

    def abort(self) -> None:
        """Abort communication, for the watcher, in another thread. Never raises."""
        try:
            if self.arguments.abort is not None:
                self.arguments.abort(self.state.freeze())
        except BaseException as error:  # noqa: BLE001 - the restart must go on
            failures.log_failure(logging.ERROR, self.state.rank, "abort_ex", error)
        finally:
            self.store.break_off()

    def _prefix(self) -> str:
        """Return the prefix of this epoch's keys, in stores that outlive it."""
        return f"inprocess_{self.call}_{self.state.iteration}"

    def _call_user(self, function: Callable[[], Any]) -> Any:
        """Run the code that may be interrupted."""
        self._tag = "init_ex"
        if self.arguments.initialize is not None:
            self.arguments.initialize(self.state.freeze())
        self._tag = "health_ex"
        if self.arguments.health_check is not None:
            _check(self.arguments.health_check, self.state)
        self._tag = "fn_ex"
        return function() if self.state.mode is Mode.ACTIVE else None

    def _has_failed(self, error: BaseException) -> None:
        """The user's code has raised: its own error, or because the epoch is over."""
        self._error = error
        if self.gate.over:
            failures.log_failure(logging.INFO, self.state.rank, "async_ex", error)
            return
        if isinstance(error, Exception):
            self.state.fn_exception = error
        reason = self._reason(error, Interruption.EXCEPTION)
        self._say(Fault(*self._message_ids(), reason=reason))  # others wait for it, not for a log
        failures.log_failure(logging.ERROR, self.state.rank, self._tag, error, reason.where)

    def _wait(self) -> Stop | Finished:
        """Wait until the epoch is over everywhere."""
        longest = self._limits.longest_wait_s(self._limits.completion_timeout)
        reserve = self._error is None and self.state.mode is not Mode.ACTIVE
        # A reserve waits as long as the others work; its guard ends the wait if it is cut off.
        verdict = self.inbox.wait_for_verdict(None if reserve else longest)
        if isinstance(verdict, Stop | Finished):
            return verdict
        raise self._ending(verdict, "the end of the iteration")

    # --- between two epochs -----------------------------------------------------------------------

    def _recover(self) -> None:
        """Make this rank ready for the next epoch. An error in here is fatal for the rank."""
        watcher, state = self._watcher, self.state
        over_at = self._phases.pop("interrupted_at")
        self.page.set_phase(Phase.RECOVERING)
        self._phases["abort"] = watcher.aborted_at - watcher.ruled_at
        self._phases["stop"] = max(0.0, over_at - watcher.aborted_at)
        self._tag = "finalize_ex"
        with self._timed("finalize"):
            if self.arguments.finalize is not None:
                self.arguments.finalize(state.freeze())
        self._tag = "restart_ex"
        with self._timed("health"):
            if self._restart_health_check is not None:
                _check(self._restart_health_check, state)
        self._tag = "other_ex"
        with self._timed("collect"):
            self._forget()
        state.advance()

    def _forget(self) -> None:
        """Release everything that the function has left behind."""
        self._result = None
        failures.clear(self._error, self._outer)
        self._error = self.state.fn_exception = None
        self.store.drop()
        gc.collect()

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self._phases[phase] = time.monotonic() - begun

    # --- the end ----------------------------------------------------------------------------------

    def _complete(self) -> None:
        if self.arguments.completion is not None:
            try:
                self.arguments.completion(self.state.freeze())
            except Exception as error:  # noqa: BLE001 - the function has succeeded all the same
                failures.log_failure(logging.ERROR, self.state.rank, "completion_ex", error)

    def _leave(self, error: BaseException) -> None:
        """This rank takes no part in the call any more; tell the others."""
        if not isinstance(error, _OthersFinished):
            failures.log_failure(logging.ERROR, self.state.rank, self._tag, error)
        self.page.set_phase(Phase.OUTSIDE)
        c10d.release()  # no next epoch does
        if not isinstance(self.inbox.verdict, LAST):
            discarded = isinstance(error, RankDiscarded)
            reason = self._reason(error, Interruption.BASE_EXCEPTION)
            with contextlib.suppress(GuardLinkError):
                self.link.send(Leave(*self._message_ids(), reason=reason, discarded=discarded))
        self.state.mode = Mode.TERMINATED
        if self.arguments.terminate is not None:
            try:
                self.arguments.terminate(self.state.freeze())
            except BaseException as another:
                failures.log_failure(logging.ERROR, self.state.rank, "terminate_ex", another)
                raise

    def _ending(self, verdict: Verdict | None, what: str) -> BaseException:
        """Return the exception for the verdict that ends the call.

        Args:
            verdict: None = no verdict has come in time.
            what: the rank has waited for.
        """
        match verdict:
            case End(kind="abort", text=text):
                return RestartAbort(text)
            case End(kind="barrier", text=text):
                return BarrierTimeout(text)
            case End(kind="mismatch", text=text):
                return ValueError(text)
            case Dismissed(finished=True):
                failures.log_too_late(self.link.job_rank)
                return _OthersFinished(0)
            case End(text=text) | Dismissed(text=text) | Broken(text=text):
                return InternalError(text)
            case _:
                return InternalError(f"rank {self.state.rank} has waited in vain for {what}")

    # --- messages to the guard --------------------------------------------------------------------

    def _say(self, message: Fault | Completed) -> None:
        """Tell the guard. If the guard is gone, the watcher notices it as well, with the reason."""
        with contextlib.suppress(GuardLinkError):
            self.link.send(message)

    def _message_ids(self) -> tuple[int, int, int]:
        return self.call, self.link.job_rank, self.state.iteration

    def _reason(self, error: BaseException, kind: Interruption) -> Any:
        return failures.reason_of(error, kind, self.link.job_rank, self.state.rank)


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


def _connect(arguments: Arguments, base_store: Any) -> GuardLink:
    first = State.from_env()
    options = start.Options(
        job_rank=first.rank,
        world_size=first.world_size,
        heartbeat_interval_s=arguments.heartbeat_interval.total_seconds(),
        limits=arguments.limits(),
        store_kwargs=arguments.store_kwargs or {},
        logfile=arguments.monitor_process_logfile or "",
        pidfile=arguments.monitor_process_pidfile or "",
    )
    guard = start.connect(options, base_store=base_store)
    return GuardLink(guard, first.rank, first.world_size)


def _store(arguments: Arguments, base_store: Any, job_size: int) -> EpochStore:
    timeout = (arguments.store_kwargs or {}).get("timeout", _STORE_TIMEOUT)
    return EpochStore(host_for_ranks(os.environ, job_size), timeout, base_store)


class _OthersFinished(SystemExit):
    """The others have finished: this process, in the place of a lost one, ends with exit code 0."""


def _check(health_check: Callable[..., Any], state: State) -> None:
    try:
        health_check(state.freeze())
    except HealthCheckError:
        raise
    except Exception as error:
        raise HealthCheckError(str(error)) from error


class _LazyContext(RankAssignmentCtx):
    """Connects to the epoch's store only when the rank assignment asks for it."""

    @property
    def store(self) -> Any:
        """The store, connected to."""
        return self._store.get() if isinstance(self._store, EpochStore) else self._store

    @store.setter
    def store(self, store: Any) -> None:
        self._store = store


def _wanted_info(rank_assignment: Callable[..., Any], state: State) -> Any:
    """Return the information about this rank that all ranks need; None = nothing."""
    info = getattr(rank_assignment, "info", None)
    return None if info is None else info(state)
