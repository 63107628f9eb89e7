"""`Wrapper` makes a function restartable in all ranks; `CallWrapper` is one call of it."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any, Self

from undaunted.base import torch_ranks
from undaunted.inprocess.arguments import Arguments
from undaunted.inprocess.param_utils import substitute_param_value
from undaunted.inprocess.progress_watchdog import ProgressWatchdog
from undaunted.inprocess.rank.loop import EpochLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.monitor_process import MonitorProcess

_logger = logging.getLogger("undaunted")


class Wrapper(Arguments):
    """Restarts a function in all ranks, inside their processes, after a fault in any of them.

    ``Wrapper(...)(fn)`` returns a function that is called like ``fn``; also as a decorator. Every
    call makes a `CallWrapper`, which ``fn`` gets where it has a parameter annotated so. The
    arguments are those of `Arguments`.
    """

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``fn`` made restartable."""
        if not self.enabled:
            return fn

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with CallWrapper(self) as call:
                return call(fn, args, kwargs)

        return wrapped


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
        self._loop = EpochLoop(wrapper)
        self.state = self._loop.state
        self.progress_watchdog = ProgressWatchdog(self._loop.page)
        self.monitor_process: MonitorProcess = self._loop.link.guard
        self._log(f"begins; pid={os.getpid()}, monitor_process={self.monitor_process.pid}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """End the call; leaving the context does it."""
        self._loop.close()
        self._log(f"ends after {self.state.iteration} restarts")

    def _log(self, what: str) -> None:
        rank, number = self.state.initial_rank, self._loop.call
        _logger.debug("[In-process] rank %s: call %s %s", rank, number, what)

    def __call__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run ``fn`` until all ranks have completed it; return its result, None in a reserve."""
        args, kwargs = substitute_param_value(fn, args, kwargs, {CallWrapper: self})
        return self._loop.run(lambda: fn(*args, **kwargs))

    # --- for the function -------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """Number of the iteration: how often the function was restarted in this call."""
        return self.state.iteration

    @property
    def store(self) -> Any:
        """A store of torch for this iteration, shared by its ranks; connects at the first use."""
        return self._loop.store.get()

    @property
    def base_store(self) -> Any:
        """The store of ``store_factory``; without one the iteration's store, None = not in use."""
        return self._loop.store.base

    def ping(self) -> None:
        """Say that the function makes progress.

        After the first call in an iteration, it must be called at least once per ``soft_timeout``,
        or all ranks are restarted.
        """
        self._loop.page.ping()

    def atomic(self) -> Section:
        """Return a context manager: code in it is not interrupted, nor communication aborted.

        The restart waits until the code has ended, in all threads. ``hard_timeout`` is put off, by
        ``barrier_timeout`` at most.
        """
        gate = self._loop.gate
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
        page = self._loop.page
        page.set_unguarded(max(0, page.unguarded + change))


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
    if torch_ranks.has_group():
        raise ValueError(
            "torch.distributed is initialized already: "
            "create process groups in the wrapped function, as it must be able to create them again"
        )
