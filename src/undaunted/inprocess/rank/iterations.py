"""The iterations of one call in one rank, from the first record to the end of the call.

An *epoch* is what the ranks agree on: it begins with a record, and ends when it is stopped or the
call ends. An *iteration* is the same for users: one run of their function. Both have the same
number, from 0. In the code it is an epoch; in `State`, plug-ins and text for users an iteration.

docs/design/inprocess.md, "One rank", describes the order of events.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.attribution import Interruption
from undaunted.inprocess.barriers import BarrierTimeout
from undaunted.inprocess.communication import c10d, creation
from undaunted.inprocess.core.messages import (
    Completed,
    Dismissed,
    End,
    Fault,
    Finished,
    Join,
    Leave,
    Record,
    Stop,
)
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.exception import (
    HealthCheckError,
    InternalError,
    RankShouldRestart,
    RestartAbort,
)
from undaunted.inprocess.rank import failures
from undaunted.inprocess.rank.epoch_store import EpochStore
from undaunted.inprocess.rank.guard_link import GuardLinkError
from undaunted.inprocess.rank.verdict import LAST, Broken, log_swallower
from undaunted.inprocess.rank_assignment import (
    RankAssignmentCtx,
    RankDiscarded,
    activate,
)
from undaunted.inprocess.state import Mode
from undaunted.progress.writer import last_iteration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.inprocess.parameters import Parameters
    from undaunted.inprocess.rank.session import Session
    from undaunted.inprocess.rank.verdict import Verdict
    from undaunted.inprocess.state import State

# A rank waits for the controller's messages longer than the controller's own timeouts, by this.
_MARGIN_S = 10.0


class Iterations:
    """One call in this rank. The user's code runs in the thread that calls `run`."""

    def __init__(
        self,
        parameters: Parameters,
        restart_health_check: Callable[..., Any] | None,
        session: Session,
        state: State,
    ) -> None:
        self._parameters = parameters
        self._restart_health_check = restart_health_check
        self._session = session
        self._state = state
        self._limits = parameters.limits()
        self._error: BaseException | None = None  # that ended the function in this epoch
        self._outer = sys.exc_info()[1]
        self._furthest = 0  # of the numbers of `undaunted.step`
        self._result: Any = None
        self._phases: dict[str, float] = {}
        self._tag = "other_ex"  # of the code that runs, for log lines

    def run(self, function: Callable[[], Any]) -> Any:
        """Run the function until all ranks have completed it, and return its result.

        Raises:
            RestartAbort: the call is given up in all ranks.
            RestartError: this rank cannot go on; the message says why.
            BaseException: another error that is fatal for this rank.
        """
        try:
            self._state.iteration = 0
            while True:
                self._join()
                self._execute(function)
                if isinstance(self._wait(), Finished):
                    break
                self._recover()
        except BaseException as error:
            self._leave(error)
            raise
        self._session.page.set_phase(Phase.OUTSIDE)
        self._complete()
        return self._result

    # --- the next epoch ---------------------------------------------------------------------------

    def _join(self) -> None:
        """Join the epoch, and take up its record."""
        session = self._session
        session.page.set_phase(Phase.WAITING)
        session.page.set_unguarded(0)  # an interruption may have left such a section half
        session.inbox.begin_epoch()
        session.gate.reset()
        session.link.send(self._ready())
        limits = self._limits
        longest = limits.barrier_timeout + limits.heartbeat_timeout + _MARGIN_S
        # A process that takes the place of a lost one waits until the others are restarted.
        news = session.inbox.wait_for_record(None if session.rejoins else longest)
        if not isinstance(news, Record):
            raise self._ending(news, "the record of the next iteration")
        session.take_up(news)
        session.page.set_phase(Phase.RECOVERING)
        self._state.iteration = news.epoch
        serve = news.members[0] == session.link.job_rank
        session.store.begin(self._prefix(), news.store, serve=serve)
        if serve:
            session.wake()
        self._state.fn_exception = None
        _assign(self._parameters, self._state, news, session)
        failures.log_restart(news, self._state.rank)

    def _ready(self) -> Join:
        session, state = self._session, self._state
        self._furthest = max(self._furthest, last_iteration() or 0)
        return Join(
            call=session.call,
            job_rank=session.link.job_rank,
            epoch=state.iteration,
            rank=-1 if session.rejoins else state.rank,
            world_size=state.world_size,
            store=session.store.address(),
            info=_wanted_info(self._parameters.rank_assignment, state),
            progress=session.page.pings + self._furthest,
            phases=self._phases,
        )

    # --- the user's code --------------------------------------------------------------------------

    def _execute(self, function: Callable[[], Any]) -> None:
        session = self._session
        session.witness.reserve = self._state.mode is not Mode.ACTIVE
        session.page.set_phase(Phase.RUNNING)
        try:
            with creation.watch(self._prefix(), {session.store.port}):
                self._result = session.gate.run(
                    lambda: self._call_user(function), session.interrupter.clear
                )
        except (Exception, RankShouldRestart) as error:  # noqa: BLE001 - all of them are restarted from
            session.page.set_phase(Phase.WAITING)
            self._has_failed(error)
        else:
            session.page.set_phase(Phase.WAITING)
            reserve = self._state.mode is not Mode.ACTIVE
            self._say(Completed(*self._message_ids(), reserve=reserve))
        finally:
            self._phases = {"interrupted_at": time.monotonic()}
            log_swallower(session.gate)

    def _prefix(self) -> str:
        """Return the prefix of this epoch's keys, in stores that outlive it."""
        return f"inprocess_{self._session.call}_{self._state.iteration}"

    def _call_user(self, function: Callable[[], Any]) -> Any:
        """Run the code that may be interrupted."""
        self._tag = "init_ex"
        if self._parameters.initialize is not None:
            self._parameters.initialize(self._state.freeze())
        self._tag = "health_ex"
        if self._parameters.health_check is not None:
            _check(self._parameters.health_check, self._state)
        self._tag = "fn_ex"
        return function() if self._state.mode is Mode.ACTIVE else None

    def _has_failed(self, error: BaseException) -> None:
        """The user's code has raised: its own error, or because the epoch is over."""
        self._error = error
        if self._session.gate.over:
            failures.log_failure(logging.INFO, self._state.rank, "async_ex", error)
            return
        failures.log_failure(logging.ERROR, self._state.rank, self._tag, error)
        if isinstance(error, Exception):
            self._state.fn_exception = error
        self._say(Fault(*self._message_ids(), reason=self._reason(error, Interruption.EXCEPTION)))

    def _wait(self) -> Stop | Finished:
        """Wait until the epoch is over everywhere."""
        limits = self._limits
        longest = limits.completion_timeout + limits.heartbeat_timeout + _MARGIN_S
        reserve = self._error is None and self._state.mode is not Mode.ACTIVE
        # A reserve waits as long as the others work; its guard ends the wait if it is cut off.
        verdict = self._session.inbox.wait_for_verdict(None if reserve else longest)
        if isinstance(verdict, Stop | Finished):
            return verdict
        raise self._ending(verdict, "the end of the iteration")

    # --- between two epochs -----------------------------------------------------------------------

    def _recover(self) -> None:
        """Make this rank ready for the next epoch. An error in here is fatal for the rank."""
        times, state = self._session.termination, self._state
        over_at = self._phases.pop("interrupted_at")
        self._session.page.set_phase(Phase.RECOVERING)
        self._phases["abort"] = times.aborted_at - times.ruled_at
        self._phases["stop"] = max(0.0, over_at - times.aborted_at)
        self._tag = "finalize_ex"
        with self._timed("finalize"):
            if self._parameters.finalize is not None:
                self._parameters.finalize(state.freeze())
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
        self._error = self._state.fn_exception = None
        self._session.store.drop()
        gc.collect()

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self._phases[phase] = time.monotonic() - begun

    # --- the end ----------------------------------------------------------------------------------

    def _complete(self) -> None:
        if self._parameters.completion is not None:
            try:
                self._parameters.completion(self._state.freeze())
            except Exception as error:  # noqa: BLE001 - the function has succeeded all the same
                failures.log_failure(logging.ERROR, self._state.rank, "completion_ex", error)

    def _leave(self, error: BaseException) -> None:
        """This rank takes no part in the call any more; tell the others."""
        session = self._session
        if not isinstance(error, _OthersFinished):
            failures.log_failure(logging.ERROR, self._state.rank, self._tag, error)
        session.page.set_phase(Phase.OUTSIDE)
        c10d.release()  # no next epoch does
        if not isinstance(session.inbox.verdict, LAST):
            discarded = isinstance(error, RankDiscarded)
            reason = self._reason(error, Interruption.BASE_EXCEPTION)
            with contextlib.suppress(GuardLinkError):
                session.link.send(Leave(*self._message_ids(), reason=reason, discarded=discarded))
        self._state.mode = Mode.TERMINATED
        if self._parameters.terminate is not None:
            try:
                self._parameters.terminate(self._state.freeze())
            except BaseException as another:
                failures.log_failure(logging.ERROR, self._state.rank, "terminate_ex", another)
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
                failures.log_too_late(self._session.link.job_rank)
                return _OthersFinished(0)
            case End(text=text) | Dismissed(text=text) | Broken(text=text):
                return InternalError(text)
            case _:
                return InternalError(f"rank {self._state.rank} has waited in vain for {what}")

    # --- messages to the guard --------------------------------------------------------------------

    def _say(self, message: Fault | Completed) -> None:
        """Tell the guard. If the guard is gone, the watcher notices it as well, with the reason."""
        with contextlib.suppress(GuardLinkError):
            self._session.link.send(message)

    def _message_ids(self) -> tuple[int, int, int]:
        session = self._session
        return session.call, session.link.job_rank, self._state.iteration

    def _reason(self, error: BaseException, kind: Interruption) -> Any:
        return failures.reason_of(error, kind, self._session.link.job_rank, self._state.rank)


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


def _assign(parameters: Parameters, state: State, record: Record, session: Session) -> None:
    """Give this process its rank of the epoch, in ``state`` and in the environment.

    Raises:
        RankDiscarded: the rank assignment has left it out.
        RestartAbort: no rank would call the function.
        Exception: any error of the rank assignment.
    """
    state.world_size = record.world_size
    if record.joined:
        state.forget_assignment()
        state.rank = record.joined.get(session.link.job_rank, state.rank)
    context = _LazyContext(state, session.store, set(record.terminated), record.info or None)
    context = parameters.rank_assignment(context)
    state.copy_from(context.state)
    if session.all_active or state.mode is Mode.INITIALIZED:
        session.all_active = True  # the assignment only gives ranks; a filter may do the rest
        activate(state, state.world_size)
    if parameters.rank_filter is not None:
        state.copy_from(parameters.rank_filter(state))
    if state.active_world_size == 0:
        raise RestartAbort(
            f"no rank is active: rank assignment and filter leave none of {state.world_size} ranks "
            "that would call the function"
        )
    state.set_distributed_vars()
    session.link.keep(state.rank, state.world_size)
    session.page.assigned(state.rank)
