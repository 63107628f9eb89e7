"""Work that threads share: each takes what is next, until nothing is left or one has failed."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# How long a failed or interrupted call waits for parts that other threads have begun.
STOP_S = 60.0
# Interruptions that may come, one after the other, in the moment in which one is dealt with.
_AT_ONCE = 4


def share(count: int, threads: int, name: str, work: Callable[[Iterator[int]], None]) -> None:
    """Do all of some work; return when it is done.

    No thread works on when this raises, however often the caller is interrupted. The exception is a
    part that a thread does not finish within `STOP_S`, as one on storage that hangs. So ``work``
    owns the memory that it fills. Where no further thread can be started, fewer do the work.

    Args:
        count: of its parts, which have numbers from 0.
        threads: that do it at the most, this one among them.
        name: of the others.
        work: called in each thread with the numbers of the parts that it does; what it raises ends
            the work of all, and is raised here.
    """
    if not count:
        return
    numbers = itertools.count()
    errors: list[BaseException] = []
    others: list[_Other] = []

    def mine() -> Iterator[int]:
        while not errors and (number := next(numbers)) < count:
            yield number

    def run() -> None:
        try:
            if not errors:
                work(mine())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    def begin() -> None:
        try:
            for _ in range(min(threads, count) - 1):
                others.append(_Other(run, name))
                others[-1].start()
        except RuntimeError as error:
            if str(error) != "can't start new thread":  # a limit of processes, or of memory
                raise
        run()

    _end(begin, others, errors)
    if errors:
        raise errors[0]


def _end(
    begin: Callable[[], None],
    others: list[_Other],
    errors: list[BaseException],
    again: int = _AT_ONCE,
) -> None:
    """Begin, and wait for the others; what is interrupted outside of a wait, a caller does."""
    try:
        if again:
            _end(begin, others, errors, again - 1)
        else:
            begin()
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        errors.append(error)
    finally:
        _wait(others, errors)


class _Other(threading.Thread):
    """A thread that says when it is done.

    After an interrupted ``join``, Python up to 3.12 takes a thread that runs for one that ended.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.done = threading.Event()
        self._run = run

    def run(self) -> None:
        self._run()
        self.done.set()


def _wait(others: list[_Other], errors: list[BaseException]) -> None:
    """Wait for the other threads; an interruption becomes an error, which stops them."""
    deadline = None
    while others:
        try:
            if errors and deadline is None:
                deadline = time.monotonic() + STOP_S
            # A thread that is only now about to run has no number yet, and sees the errors.
            while others:
                other = others[-1]
                left = deadline and max(deadline - time.monotonic(), 0)
                if other.ident is not None and other.done.wait(left):
                    other.join()
                others.pop()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)
