"""An event loop of asyncio that lives in one simulated process: no sockets, threads or waiting.

Whoever owns it sets the time and says when timers are due. What the same calls put on it runs in
the same order: timers of one moment in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, cast

from simulator.virtual.schedule import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_THREAD_NS = 2 * NS_PER_MS  # what a call in a thread takes


class _Task(asyncio.Task[Any]):
    """Tasks are kept in sets, whose order must be the same in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Call:
    """What `asyncio.Handle` and `asyncio.TimerHandle` are, in a third of their time."""

    __slots__ = ("_at_ns", "_cancelled", "args", "callback")

    def __init__(self, callback: Callable[..., object], args: Any, at_ns: int = 0) -> None:
        self.callback, self.args = callback, args
        self._at_ns, self._cancelled = at_ns, False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._at_ns / NS_PER_S


class Loop:
    """What code of asyncio uses of an `asyncio.AbstractEventLoop`; see the module's documentation.

    Args:
        expected: what tasks may raise; anything else is a finding, which `run` raises.

    Attributes:
        now: virtual time, nanoseconds.
    """

    def __init__(self, expected: tuple[type[Exception], ...] = (OSError,)) -> None:
        self.now = 0
        self._expected = expected
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[int, int, _Call]] = []
        self._made = 0
        self._found: BaseException | None = None
        self._self = cast("asyncio.AbstractEventLoop", self)

    # --- for its owner --------------------------------------------------------------------------

    def run(self, function: Callable[..., object], *args: Any) -> None:
        """Call something, then run whatever is ready, and what becomes so meanwhile."""
        before = asyncio._get_running_loop()  # noqa: SLF001 - for whoever runs a loop
        asyncio._set_running_loop(self._self)  # noqa: SLF001
        try:
            function(*args)
            while self._ready and self._found is None:
                call = self._ready.popleft()
                if not call.cancelled():
                    call.callback(*call.args)
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001
        if self._found is not None:
            raise self._found

    def due_ns(self) -> int | None:
        """When the next timer is due, None = there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def fire(self) -> None:
        """Have the timers called that are due."""
        while (due := self.due_ns()) is not None and due <= self.now:
            self._ready.append(heapq.heappop(self._timers)[2])

    # --- of asyncio -----------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds."""
        return self.now / NS_PER_S

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> _Call:
        """See asyncio."""
        del context
        call = _Call(callback, args)
        self._ready.append(call)
        return call

    def call_soon_threadsafe(self, callback: Any, *args: Any) -> _Call:
        """See asyncio: there are no threads here."""
        return self.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Any, *args: Any) -> _Call:
        """See asyncio."""
        return self._at(self.now + round(delay * NS_PER_S), callback, args)

    def call_at(self, when: float, callback: Any, *args: Any) -> _Call:
        """See asyncio."""
        return self._at(round(when * NS_PER_S), callback, args)

    def _at(self, at_ns: int, callback: Any, args: Any) -> _Call:
        call = _Call(callback, args, at_ns)
        self._made += 1
        heapq.heappush(self._timers, (at_ns, self._made, call))
        return call

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self._self)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[T]:
        """See asyncio."""
        self._made += 1
        task = _Task.__new__(_Task)
        task.number = self._made  # before its first use in a set
        _Task.__init__(task, coro, loop=self._self, name=name, context=context)
        task.add_done_callback(self._done)
        return task

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Call it a moment later: no thread is needed where nothing waits."""
        answer = self.create_future()

        def run() -> None:
            if answer.cancelled():
                return
            try:
                answer.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                answer.set_exception(error)

        self._at(self.now + _THREAD_NS, run, ())
        return answer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody has waited for is a finding, but for tasks of a process that is gone."""
        self._find(context.get("exception"))

    def get_debug(self) -> bool:
        """It is not in debug mode."""
        return False

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self._find(task.exception())

    def _find(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, self._expected):
            self._found = self._found or error
