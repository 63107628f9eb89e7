"""Plug-ins that run in a rank that leaves the call, before its error is raised."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.inprocess.state import FrozenState


class Terminate(abc.ABC):
    """Runs once per call. An error is raised in place of the error that has ended the rank."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Run, and return ``state``."""
        raise NotImplementedError
