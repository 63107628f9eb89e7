"""Plug-ins that run in every rank when all ranks have completed the function."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.inprocess.state import FrozenState


class Completion(abc.ABC):
    """Runs once per call. An error is logged."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Run, and return ``state``."""
        raise NotImplementedError
