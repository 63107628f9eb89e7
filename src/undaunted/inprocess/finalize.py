"""Plug-ins that run in every rank after an iteration was interrupted."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.threads import call_within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from undaunted.inprocess.state import FrozenState


class Finalize(abc.ABC):
    """Cleans up a rank, so that the function can be called again. An error ends the rank."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Clean up, and return ``state``."""
        raise NotImplementedError


class ThreadedFinalize(Finalize):
    """Calls a function, for a limited time."""

    def __init__(
        self,
        timeout: timedelta,
        fn: Callable[..., object],
        args: tuple[Any, ...] | None = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the function.

        Args:
            timeout: of the function.
            fn: the function; it runs in another thread, with the main thread's CUDA device.
            args: arguments of the function, by position.
            kwargs: arguments of the function, by name.
        """
        self.timeout = timeout
        self.fn = fn
        self.args = args or ()
        self.kwargs = dict(kwargs or {})

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Finalize`.

        Raises:
            TimeoutError: the function takes longer.
            BaseException: any error of the function.
        """
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        call_within(self.timeout, lambda: self.fn(*self.args, **self.kwargs), f"finalize {name}")
        return state
