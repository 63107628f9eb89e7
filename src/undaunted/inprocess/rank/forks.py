"""Objects that a forked child of a rank must let go of, or it would disturb its parent.

A child of the user's code, such as a worker of a DataLoader, has copies of all descriptors and
shares the page. It lets go of them at once.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgetful(Protocol):
    """An object that is of use only in the process that has made it."""

    def after_fork(self) -> None:
        """In the child: let go of everything, and do no harm when used. May be closed already."""


_alive: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_in_children(thing: Forgetful) -> None:
    """Call ``after_fork`` of ``thing`` in every child that this process forks while it lives."""
    _alive.add(thing)


def _in_child() -> None:
    for thing in list(_alive):
        thing.after_fork()
    _alive.clear()


os.register_at_fork(after_in_child=_in_child)
