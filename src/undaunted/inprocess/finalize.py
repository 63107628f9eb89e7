"""What runs in every rank after an iteration was interrupted."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.threads import call_within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from undaunted.inprocess.state import FrozenState


class Finalize(abc.ABC):
    """Brings a rank back to where the function can be called again. An error ends the rank."""

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
            timeout: of a call of it.
            fn: runs in a thread of its own, with the CUDA device of the main thread.
            args: it is called with.
            kwargs: it is called with.
        """
        self.timeout = timeout
        self.fn = fn
        self.args = args or ()
        self.kwargs = dict(kwargs or {})

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Finalize`.

        Raises:
            TimeoutError: the function takes longer.
            BaseException: what it raises.
        """
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        call_within(self.timeout, lambda: self.fn(*self.args, **self.kwargs), f"finalize {name}")
        return state
