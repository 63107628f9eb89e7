"""What runs in a rank that takes no part any more, before its error is raised."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.inprocess.state import FrozenState


class Terminate(abc.ABC):
    """Runs once per call. An error takes the place of the one that has ended the rank."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Do it, and return ``state``."""
        raise NotImplementedError
