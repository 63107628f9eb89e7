"""Saying which ranks call the function: the first ones; the others are reserves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.inprocess.rank_assignment.context import RankAssignment
from undaunted.inprocess.state import Mode

if TYPE_CHECKING:
    from undaunted.inprocess.rank_assignment.context import RankAssignmentCtx
    from undaunted.inprocess.state import State


def activate(state: State, active_world_size: int) -> None:
    """Have so many ranks be active: the first ones."""
    state.active_world_size = active_world_size
    if state.rank < active_world_size:
        state.mode, state.active_rank = Mode.ACTIVE, state.rank
    else:
        state.mode, state.active_rank = Mode.INACTIVE, None


def most_active(state: State) -> int:
    """Return how many may be active: as many as before, if there are still so many."""
    if state.active_world_size is None:
        return state.world_size
    return min(state.active_world_size, state.world_size)


class RankFilter(RankAssignment):
    """A rank assignment that leaves ranks as they are, and says only who is active."""


class ActivateAllRanks(RankFilter):
    """All ranks are active."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        activate(ctx.state, ctx.state.world_size)
        return ctx


class MaxActiveWorldSize(RankFilter):
    """Not more than so many ranks are active."""

    def __init__(self, max_active_world_size: int | None = None) -> None:
        """Limit the number of active ranks; None = all may be active.

        Raises:
            ValueError: the limit is less than 1.
        """
        if max_active_world_size is not None and max_active_world_size < 1:
            raise ValueError(f"max_active_world_size={max_active_world_size} must be at least 1")
        self.max_active_world_size = max_active_world_size

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        most = most_active(ctx.state)
        limit = most if self.max_active_world_size is None else self.max_active_world_size
        activate(ctx.state, min(most, limit))
        return ctx


class ActiveWorldSizeDivisibleBy(RankFilter):
    """The number of active ranks is a multiple of a number."""

    def __init__(self, divisor: int = 1) -> None:
        """Round down to multiples of ``divisor``.

        Raises:
            ValueError: it is less than 1.
        """
        if divisor < 1:
            raise ValueError(f"divisor={divisor} must be at least 1")
        self.divisor = divisor

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        most = most_active(ctx.state)
        activate(ctx.state, most - most % self.divisor)
        return ctx
