"""The savers of checkpoints in this process, which can be told to give up."""

from __future__ import annotations

import weakref
from typing import Protocol


class Abortable(Protocol):
    """Something that saves."""

    def abort(self) -> None:
        """Give up what is being saved; waits for no other rank. May be called again."""


_known: weakref.WeakSet[Abortable] = weakref.WeakSet()


def register(one: Abortable) -> None:
    """Have `abort_all` tell this one, as long as it exists."""
    _known.add(one)


def abort_all() -> None:
    """Give up all saves of this process; called by any thread, as when a function is restarted.

    Raises:
        Exception: the first error of one that could not be told; all others were.
    """
    errors: list[Exception] = []
    for one in list(_known):
        try:
            one.abort()
        except Exception as error:  # noqa: BLE001 - raised after the others
            errors.append(error)
    if errors:
        raise errors[0]
