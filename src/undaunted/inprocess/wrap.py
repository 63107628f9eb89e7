"""`Wrapper` makes a function restartable in all ranks; `CallWrapper` is one call of it."""

from __future__ import annotations

import functools
import logging
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from undaunted.inprocess import store
from undaunted.inprocess.abort import AbortTorchDistributed
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.param_utils import substitute_param_value
from undaunted.inprocess.parameters import Parameters
from undaunted.inprocess.progress_watchdog import ProgressWatchdog
from undaunted.inprocess.rank import failures, guard_link
from undaunted.inprocess.rank.iterations import Iterations
from undaunted.inprocess.rank.session import Session
from undaunted.inprocess.rank_assignment import ActivateAllRanks, ShiftRanks
from undaunted.inprocess.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.abort import Abort
    from undaunted.inprocess.completion import Completion
    from undaunted.inprocess.finalize import Finalize
    from undaunted.inprocess.health_check import HealthCheck
    from undaunted.inprocess.initialize import Initialize
    from undaunted.inprocess.monitor_process import MonitorProcess
    from undaunted.inprocess.rank_assignment import RankAssignment
    from undaunted.inprocess.terminate import Terminate

_logger = logging.getLogger("undaunted")

_SECOND = timedelta(seconds=1)
_ABORT = AbortTorchDistributed()
_ASSIGNMENT = Compose(ActivateAllRanks(), ShiftRanks())


class Wrapper:
    """Restarts a function in all ranks, inside their processes, after a fault in any of them.

    ``Wrapper(...)(fn)`` returns a function that is called like ``fn``; also as a decorator. Every
    call makes a `CallWrapper`, which ``fn`` gets where it has a parameter annotated so.

    Plug-ins are instances of the classes named below, or any callables.

    Attributes:
        parameters: the arguments.
        restart_health_check: runs after a fault: ``health_check``, and checks of this rank's GPU,
            NVLink and network card, which are found by ``LOCAL_RANK``.
    """

    def __init__(  # noqa: PLR0913 - the interface users know
        self,
        *,
        store_factory: type[store.StoreMixin] = store.TCPStore,
        store_kwargs: dict[str, Any] | None = None,
        initialize: Initialize | Callable[..., Any] | None = None,
        abort: Abort | Callable[..., Any] | None = _ABORT,
        finalize: Finalize | Callable[..., Any] | None = None,
        health_check: HealthCheck | Callable[..., Any] | None = None,
        rank_assignment: RankAssignment | Callable[..., Any] = _ASSIGNMENT,
        rank_filter: Callable[..., Any] | None = None,
        monitor_thread_interval: timedelta = _SECOND,
        monitor_process_interval: timedelta = _SECOND,
        heartbeat_interval: timedelta = _SECOND,
        progress_watchdog_interval: timedelta = _SECOND,
        soft_timeout: timedelta = 60 * _SECOND,
        hard_timeout: timedelta = 90 * _SECOND,
        heartbeat_timeout: timedelta = 30 * _SECOND,
        barrier_timeout: timedelta = 120 * _SECOND,
        completion_timeout: timedelta = 120 * _SECOND,
        last_call_wait: timedelta = _SECOND,
        termination_grace_time: timedelta = 5 * _SECOND,
        monitor_process_logfile: str | None = None,
        monitor_process_pidfile: str | None = None,
        enabled: bool = True,
        completion: Completion | Callable[..., Any] | None = None,
        terminate: Terminate | Callable[..., Any] | None = None,
        max_identical_faults: int | None = 3,
    ) -> None:
        """Check the arguments.

        Args:
            store_factory: another class than the default makes the store that guards meet in, and
                that iterations share; by default every iteration has a fresh one.
            store_kwargs: for ``store_factory``. By default ``host_name`` and ``port`` are where
                rank 0's guard listens (``MASTER_ADDR``, and a free port; not used under
                `undaunted run`, and on one machine), ``timeout`` that of the iterations' stores
                (300 s).
            initialize: called at the beginning of every iteration.
            abort: aborts communication, in a thread of its own; its exceptions are ignored.
            finalize: called in every rank after a fault; its exceptions are fatal for the rank.
            health_check: called at the beginning of iterations, and after a fault; then its
                exceptions are fatal for the rank.
            rank_assignment: gives ranks to the processes that are left.
            rank_filter: outdated: applied to the state after ``rank_assignment``.
            monitor_thread_interval: not used, as nothing is polled.
            monitor_process_interval: not used, for the same reason.
            heartbeat_interval: how often guards tell each other that they are there.
            progress_watchdog_interval: how often a rank shows that its interpreter turns.
            soft_timeout: if a rank makes no progress for this long, all ranks are restarted.
            hard_timeout: if a rank makes no progress for this long, its process is ended.
            heartbeat_timeout: a node that is silent for this long is lost.
            barrier_timeout: longest wait for ranks at the beginning of an iteration.
            completion_timeout: longest time between the first and the last return.
            last_call_wait: not used: all faults up to the next iteration are handled together,
                without a wait.
            termination_grace_time: between SIGTERM and SIGKILL.
            monitor_process_logfile: absolute path of the guards' logs; ``{rank}`` is the rank.
            monitor_process_pidfile: absolute path of a file with the guard's pid; likewise.
            enabled: False = functions are returned as they are.
            completion: called when all ranks have completed the function; its exceptions are only
                logged.
            terminate: called in a rank that leaves.
            max_identical_faults: the same exception, raised at the same line this often in a row
                without progress, ends the call with `RestartAbort` in all ranks. Progress is a
                `CallWrapper.ping`, a higher number of ``undaunted.step``, or an iteration of
                ``soft_timeout``. From the second time on it is called again after a pause of 1 s,
                2 s, ... 5 s. None = it is restarted for ever, without a pause.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: arguments contradict each other.
        """
        self.parameters = Parameters(
            store_factory=store_factory,
            store_kwargs=store_kwargs,
            initialize=initialize,
            abort=abort,
            finalize=finalize,
            health_check=health_check,
            rank_assignment=rank_assignment,
            rank_filter=rank_filter,
            completion=completion,
            terminate=terminate,
            monitor_thread_interval=monitor_thread_interval,
            monitor_process_interval=monitor_process_interval,
            heartbeat_interval=heartbeat_interval,
            progress_watchdog_interval=progress_watchdog_interval,
            soft_timeout=soft_timeout,
            hard_timeout=hard_timeout,
            heartbeat_timeout=heartbeat_timeout,
            barrier_timeout=barrier_timeout,
            completion_timeout=completion_timeout,
            last_call_wait=last_call_wait,
            termination_grace_time=termination_grace_time,
            monitor_process_logfile=monitor_process_logfile,
            monitor_process_pidfile=monitor_process_pidfile,
            enabled=enabled,
            max_identical_faults=max_identical_faults,
        )
        self.restart_health_check = _with_device_checks(health_check)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``fn`` made restartable."""
        if not self.parameters.enabled:
            return fn

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with CallWrapper(self) as call:
                return call(fn, args, kwargs)

        return wrapped

    def make_base_store(self) -> Any:
        """Return the store of a custom ``store_factory``; None = it is the default."""
        parameters = self.parameters
        if parameters.store_factory is store.TCPStore:
            return None
        return parameters.store_factory(**(parameters.store_kwargs or {}))


def _with_device_checks(health_check: Callable[..., Any] | None) -> Callable[..., Any] | None:
    local_rank = os.environ.get("LOCAL_RANK", "")
    if not (local_rank.isascii() and local_rank.isdigit()):
        return health_check
    from undaunted.inprocess.health_check import (
        ChainedGPUHealthCheck,
        ChainedNicHealthCheck,
        ChainedNVLHealthCheck,
    )

    users: tuple[Any, ...] = () if health_check is None else (health_check,)
    if isinstance(health_check, Compose):
        users = health_check.instances
    device = int(local_rank)
    composed: Callable[..., Any] = Compose(
        *users,
        ChainedGPUHealthCheck(device_index=device),
        ChainedNVLHealthCheck(device_index=device),
        ChainedNicHealthCheck(device_index=device),
    )
    return composed


class CallWrapper:
    """Made for every call of a wrapped function, which gets it by an annotated parameter.

    Attributes:
        state: ranks, sizes and iteration of this process.
        progress_watchdog: the last progress of this process.
        monitor_process: the process that watches this one.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        """Begin a call.

        Raises:
            ValueError: ``torch.distributed`` is initialized already.
            InternalError: this rank has no guard.
            Exception: any error of a custom ``store_factory``.
        """
        _refuse_process_group()
        known = guard_link.current()
        self.state = State.from_env() if known is None else State(known.rank, known.world_size)
        self._wrapper = wrapper
        self._session = Session(
            wrapper.parameters,
            wrapper.make_base_store(),
            abort=self._abort,
            message_of=failures.message_of,
        )
        self.progress_watchdog = ProgressWatchdog(self._session.page)
        self.monitor_process: MonitorProcess = self._session.link.guard
        self.state.initial_rank = self._session.link.job_rank
        self.state.initial_world_size = self._session.link.job_size
        self._log(f"begins; pid={os.getpid()}, monitor_process={self.monitor_process.pid}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """End the call; leaving the context does it."""
        self._session.close()
        self._log(f"ends after {self.state.iteration} restarts")

    def _log(self, what: str) -> None:
        rank, number = self.state.initial_rank, self._session.call
        _logger.debug("[In-process] rank %s: call %s %s", rank, number, what)

    def __call__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run ``fn`` until all ranks have completed it; return its result, None in a reserve."""
        args, kwargs = substitute_param_value(fn, args, kwargs, {CallWrapper: self})
        wrapper = self._wrapper
        iterations = Iterations(
            wrapper.parameters, wrapper.restart_health_check, self._session, self.state
        )
        return iterations.run(lambda: fn(*args, **kwargs))

    # --- for the function -------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """Number of the iteration: how often the function was restarted in this call."""
        return self.state.iteration

    @property
    def store(self) -> Any:
        """A store of torch for this iteration, shared by its ranks; connects at the first use."""
        return self._session.store.get()

    @property
    def base_store(self) -> Any:
        """The store of ``store_factory``; by default the iteration's store, None = not in use."""
        return self._session.store.base

    def ping(self) -> None:
        """Say that the function makes progress.

        After the first call in an iteration, it must be called at least once per ``soft_timeout``,
        or all ranks are restarted.
        """
        self._session.page.ping()

    def atomic(self) -> Section:
        """Return a context manager: code in it is not interrupted, nor communication aborted.

        The restart waits until the code has ended, in all threads. ``hard_timeout`` is put off, by
        ``barrier_timeout`` at most.
        """
        gate = self._session.gate
        return Section(gate.enter_atomic, gate.leave_atomic, gate.raise_if_wanted)

    @property
    def atomic_lock(self) -> Section:
        """`atomic` as a lock, which may be acquired again before it is released."""
        return self.atomic()

    def disable_hang_protection(self) -> Section:
        """Return a context manager without soft and hard timeout. It may be nested."""
        return Section(self._disable_hang_protection, self._enable_hang_protection)

    def _disable_hang_protection(self) -> None:
        self._guard(1)

    def _enable_hang_protection(self) -> None:
        self._guard(-1)

    def _guard(self, change: int) -> None:
        page = self._session.page
        page.set_unguarded(max(0, page.unguarded + change))

    # --- for the watcher --------------------------------------------------------------------------

    def _abort(self) -> None:
        """Abort communication, in a thread of its own. Never raises."""
        try:
            if (abort := self._wrapper.parameters.abort) is not None:
                abort(self.state.freeze())
        except BaseException as error:  # noqa: BLE001 - the restart must go on
            failures.log_failure(logging.ERROR, self.state.rank, "abort_ex", error)
        finally:
            self._session.store.break_off()


class Section:
    """A section of the user's code, as a context manager or a lock."""

    def __init__(
        self,
        enter: Callable[[], None],
        leave: Callable[[], None],
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._enter = enter
        self._leave = leave
        self._after = after

    def acquire(self) -> bool:
        """Begin; always True."""
        self._enter()
        return True

    def release(self) -> None:
        """End."""
        self._leave()
        self._after()

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, _: object, exc: BaseException | None, *__: object) -> None:
        self._leave()
        if exc is None or isinstance(exc, Exception):
            self._after()


def _refuse_process_group() -> None:
    dist = sys.modules.get("torch.distributed")  # where it was not imported there is none
    if dist is not None and dist.is_available() and dist.is_initialized():
        raise ValueError(
            "not torch.distributed.is_initialized() must hold, but it is initialized already: "
            "create process groups in the wrapped function, as it must be able to create them again"
        )
