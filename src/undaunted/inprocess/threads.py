"""Calls of the user's code that may hang, with a limit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from undaunted.base.deadline import within
from undaunted.inprocess.exception import TimeoutError as TookTooLong

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


def call_within(timeout: timedelta, fn: Callable[[], Any], name: str) -> Any:
    """Call ``fn`` with a limit, and return its result.

    It runs in a daemon thread, with the CUDA device of the calling thread. When the time is over
    the thread is left behind: it ends when ``fn`` returns, or with the process.

    Args:
        timeout: of ``fn``.
        fn: the function.
        name: of the call, for the message.

    Raises:
        TimeoutError: it takes longer.
        BaseException: any error of ``fn``.
    """
    set_device = _device_setter()

    def outcome() -> tuple[Any, BaseException | None]:
        try:
            set_device()
            return fn(), None
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            return None, error

    late: BaseException | None = TookTooLong(f"{name} has taken longer than {timeout}")
    result, error = within(timeout.total_seconds(), outcome, (None, late))
    del late
    try:
        if error is not None:
            raise error
        return result
    finally:
        del error  # its traceback has this frame: a reference cycle


def cuda() -> Any:
    """Return ``torch.cuda`` if this process uses CUDA, else None. Imports nothing."""
    torch = sys.modules.get("torch")
    in_use = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.cuda if torch is not None and in_use else None


def _device_setter() -> Callable[[], None]:
    """Return a function that gives another thread the CUDA device of this one."""
    device_api = cuda()
    if device_api is None:
        return lambda: None
    device = device_api.current_device()
    return lambda: device_api.set_device(device)
