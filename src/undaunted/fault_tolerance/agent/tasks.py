"""The agent's work on its event loop: one event at a time, tasks that have an owner.

A bug in any of it is noticed: whatever a task or a callback raises ends the job.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

# Before Python 3.12 `asyncio.wait_for` loses a request to end that comes together with the result.
_CANCEL_AGAIN_S = 0.1
_CANCEL_S = 5.0  # for all of them together


class Tasks:
    """Tasks of one owner.

    Args:
        failed: called with the exception that ended a task: a bug of ours.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin to work."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    async def cancel(self) -> None:
        """End all of them; one that does not end in time is a bug of ours, and is left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _CANCEL_S
        while self._running and loop.time() < until:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running, timeout=_CANCEL_AGAIN_S)
        for task in self._running:
            self._failed(TimeoutError(f"{task!r} has not ended within {_CANCEL_S:g} s"))

    async def wait(self) -> None:
        """Wait until all have ended; only for tasks that are bounded by themselves."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)


def end_on_failed_callbacks(
    loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None]
) -> None:
    """Have ``failed`` called when what the loop calls raises: signals, timers, descriptors."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") if "handle" in context else None
        if error is None:
            loop.default_exception_handler(context)
        else:
            failed(error)

    loop.set_exception_handler(handle)


class Turns:
    """Calls that may cause further calls; these are made afterwards, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def take(self, call: Callable[[], None]) -> None:
        """Make ``call`` when all calls before it have returned; at once if there are none."""
        self._waiting.append(call)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._busy = False
