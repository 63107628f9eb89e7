"""A deadline for a coroutine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def bounded(call: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Return what ``call`` returns, if it does so in time; otherwise it is cancelled.

    Other than `asyncio.wait_for` before Python 3.12, this is always cancelled when it is asked to,
    also in the moment in which the call returns.

    Args:
        call: a coroutine; ends when it is cancelled.
        timeout_s: longest wait, seconds.

    Raises:
        asyncio.TimeoutError: it has not returned in time.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # has been seen
        raise
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task})
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
