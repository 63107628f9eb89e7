"""Plug-ins that run in every rank at the beginning of every iteration, before the function."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from undaunted.inprocess.exception import RestartAbort

if TYPE_CHECKING:
    from undaunted.inprocess.state import FrozenState


class Initialize(abc.ABC):
    """Prepares a rank. An error restarts all ranks; `RestartAbort` ends the call in this one."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Prepare, and return ``state``."""
        raise NotImplementedError


class RetryController(Initialize):
    """Ends the job after too many iterations, or with too few ranks."""

    def __init__(
        self,
        max_iterations: int | None = None,
        min_world_size: int = 1,
        min_active_world_size: int = 1,
    ) -> None:
        """Set the limits.

        Args:
            max_iterations: how often the function may be called; None = any number of times.
            min_world_size: how many ranks there must be, reserves included (1).
            min_active_world_size: how many ranks must call the function (1).
        """
        self.max_iterations = max_iterations
        self.min_world_size = min_world_size
        self.min_active_world_size = min_active_world_size

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Initialize`.

        Raises:
            RestartAbort: a limit is passed; the same in all ranks.
        """
        active = state.active_world_size or 0
        if (
            state.world_size < self.min_world_size
            or active < self.min_active_world_size
            or (self.max_iterations is not None and state.iteration >= self.max_iterations)
        ):
            raise RestartAbort(
                f"no further iteration: state.iteration={state.iteration}, "
                f"state.world_size={state.world_size}, state.active_world_size={active}; allowed: "
                f"max_iterations={self.max_iterations}, min_world_size={self.min_world_size}, "
                f"min_active_world_size={self.min_active_world_size}"
            )
        return state
