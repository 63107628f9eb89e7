"""Deadlines: for calls that touch a disk which may hang, and for waits on a loop."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from asyncio import Semaphore
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


def in_time(seconds: float, call: Callable[[], T]) -> T:
    """Return what ``call`` returns, or raise what it raises.

    The call runs in a daemon thread of its own, which is left behind when time runs out: it ends
    when the call returns, or with the process.

    Raises:
        TimeoutError: it takes longer than ``seconds``. It is an `OSError`, as others of a disk.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - raised in the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="undaunted-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results.pop()  # or a cycle would keep it, if it has an error of the call
    raise (
        errors.pop() if errors else TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s")
    )


def within(seconds: float, call: Callable[[], T], otherwise: T) -> T:
    """Return what ``call`` returns, or ``otherwise`` if that takes longer than ``seconds``.

    As `in_time`, but any exception of the call counts as ``otherwise``.
    """
    try:
        return in_time(seconds, call)
    except Exception:  # noqa: BLE001 - documented
        return otherwise


async def wait_for(awaitable: Awaitable[T], seconds: float) -> T:
    """Return what ``awaitable`` returns, or raise what it raises.

    As `asyncio.wait_for`, which until Python 3.12 forgets that a task was cancelled if what the
    task waits for ends in the same turn of the loop: a task that goes on after that never ends.

    Raises:
        TimeoutError: it takes longer than ``seconds``, and was cancelled.
    """
    import asyncio

    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # which nobody asks for any more
        raise
    if not done:
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            raise TimeoutError
    return task.result()


async def readable(fd: int, seconds: float | None) -> bool:
    """Wait until ``fd`` is readable or at its end; return False after ``seconds``, None = never.

    One wait for a descriptor at a time.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not arrived.done():
            arrived.set_result(None)

    loop.add_reader(fd, note)
    try:
        done, _ = await asyncio.wait([arrived], timeout=seconds)
    finally:
        loop.remove_reader(fd)
    return bool(done)


async def off_loop(slots: Semaphore, seconds: float, call: Callable[[], T]) -> T:
    """Return what ``call`` returns, or raise what it raises, without holding up the loop.

    The call runs in a daemon thread of its own, which is left behind when time runs out.

    Args:
        slots: bounds the threads, those that were left behind among them.
        seconds: for the call, and for a slot that is free.
        call: what to do.

    Raises:
        TimeoutError: no slot is free, or it takes longer.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: list[T], error: BaseException | None) -> None:
        slots.release()
        if answer.done():  # nobody waits any more
            return
        if error is None:
            answer.set_result(result[0])
        else:
            answer.set_exception(error)

    def run() -> None:
        result: list[T] = []
        failure = None
        try:
            result.append(call())
        except Exception as error:  # noqa: BLE001 - raised in the caller
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    async def asked() -> T:
        await slots.acquire()
        threading.Thread(target=run, name="undaunted-off-loop", daemon=True).start()
        return await answer

    try:
        return await wait_for(asked(), seconds)
    except TimeoutError:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s") from None
