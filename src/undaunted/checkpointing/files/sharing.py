"""Work that threads share: each takes what is next, until nothing is left or one has failed."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def share(count: int, threads: int, name: str, work: Callable[[Iterator[int]], None]) -> None:
    """Do all of some work; return when it is done.

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

    def mine() -> Iterator[int]:
        while not errors and (number := next(numbers)) < count:
            yield number

    def run() -> None:
        try:
            work(mine())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    others = [
        threading.Thread(target=run, name=name, daemon=True) for _ in range(min(threads, count) - 1)
    ]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
