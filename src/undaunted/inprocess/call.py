"""One call of a wrapped function, as the function sees it."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.param_utils import substitute_param_value
from undaunted.inprocess.progress_watchdog import ProgressWatchdog
from undaunted.inprocess.rank import connection, failures
from undaunted.inprocess.rank.iterations import Iterations
from undaunted.inprocess.rank.session import Session
from undaunted.inprocess.state import State

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from undaunted.inprocess.monitor_process import MonitorProcess
    from undaunted.inprocess.wrap import Wrapper


_logger = logging.getLogger("undaunted")


class CallWrapper:
    """Made for every call of a wrapped function, which gets it by an annotated parameter.

    Attributes:
        state: ranks, sizes and iteration of this process.
        progress_watchdog: when this process has shown progress last.
        monitor_process: the process that watches this one.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        """Begin a call.

        Raises:
            ValueError: ``torch.distributed`` is initialized already.
            InternalError: this rank has no guard.
            Exception: whatever a custom ``store_factory`` raises.
        """
        _refuse_process_group()
        known = connection.current()
        self.state = State.from_env() if known is None else State(known.rank, known.world_size)
        self._wrapper = wrapper
        self._unguarded = 0
        self._session = Session(
            wrapper.parameters,
            wrapper.make_base_store(),
            abort=self._abort,
            message_of=failures.message_of,
        )
        self.progress_watchdog = ProgressWatchdog(self._session.page)
        self.monitor_process: MonitorProcess = self._session.connection.guard
        self.state.initial_rank = self._session.connection.job_rank
        self.state.initial_world_size = self._session.connection.job_size
        self._log(f"begins; pid={os.getpid()}, monitor_process={self.monitor_process.pid}")

    def __enter__(self) -> CallWrapper:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Run ``fn`` until all ranks have completed it; None where it was not called."""
        args, kwargs = substitute_param_value(fn, args, kwargs, {CallWrapper: self})
        wrapper = self._wrapper
        iterations = Iterations(
            wrapper.parameters, wrapper.restart_health_check, self._session, self.state
        )
        return iterations.run(lambda: fn(*args, **kwargs))

    # --- for the function -------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """How often the function was restarted in this call."""
        return self.state.iteration

    @property
    def store(self) -> Any:
        """A store of torch for this iteration, shared by its ranks; connected to when asked for."""
        return self._session.store.get()

    @property
    def base_store(self) -> Any:
        """What ``store_factory`` has made; by default the iteration's store, None = not in use."""
        return self._session.store.base

    def ping(self) -> None:
        """Say that the function makes progress.

        From the first time on in an iteration, it must be called at least once per
        ``soft_timeout``, or all ranks are restarted.
        """
        self._session.page.ping()

    def atomic(self) -> Section:
        """Return a context manager: what runs in it is not interrupted, nor is communication.

        The restart waits for its end, in whichever thread it is. ``hard_timeout`` is put off, by
        ``barrier_timeout`` at most.
        """
        gate = self._session.gate
        return Section(gate.enter_atomic, gate.leave_atomic, gate.raise_if_wanted)

    @property
    def atomic_lock(self) -> Section:
        """What `atomic` returns, as a lock: it may be acquired again before it is released."""
        return self.atomic()

    def disable_hang_protection(self) -> Section:
        """Return a context manager: soft and hard timeout do not run in it. It may be nested."""
        return Section(self._disable_hang_protection, self._enable_hang_protection)

    def _disable_hang_protection(self) -> None:
        self._guard(1)

    def _enable_hang_protection(self) -> None:
        self._guard(-1)

    def _guard(self, change: int) -> None:
        self._unguarded = max(0, self._unguarded + change)
        self._session.page.set_unguarded(self._unguarded)

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
    """A part of the user's code that begins and ends with a call."""

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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
