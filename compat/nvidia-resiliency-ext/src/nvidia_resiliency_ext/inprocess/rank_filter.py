"""Filters of version 0.3, for the argument ``rank_filter`` of `Wrapper`.

Use the filters of `rank_assignment` in new programs, within ``rank_assignment=``.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from undaunted.inprocess import rank_assignment

if TYPE_CHECKING:
    from undaunted.inprocess.state import State


class RankFilter(abc.ABC):
    """Changes which ranks are active, after ranks were assigned."""

    @abc.abstractmethod
    def __call__(self, state: State) -> State:
        """Set ``active_rank``, ``active_world_size`` and ``mode``, and return ``state``."""
        raise NotImplementedError


class MaxActiveWorldSize(RankFilter):
    """Not more than so many ranks are active; None = all may be."""

    def __init__(self, max_active_world_size: int | None = None) -> None:
        self._assignment = rank_assignment.MaxActiveWorldSize(max_active_world_size)

    def __call__(self, state: State) -> State:
        """See `RankFilter`."""
        return self._assignment(rank_assignment.RankAssignmentCtx(state, None, set())).state


class ActiveWorldSizeDivisibleBy(RankFilter):
    """The number of active ranks is a multiple of ``divisor``."""

    def __init__(self, divisor: int = 1) -> None:
        self._assignment = rank_assignment.ActiveWorldSizeDivisibleBy(divisor)

    def __call__(self, state: State) -> State:
        """See `RankFilter`."""
        return self._assignment(rank_assignment.RankAssignmentCtx(state, None, set())).state


WorldSizeDivisibleBy = ActiveWorldSizeDivisibleBy  # its name before 0.4
