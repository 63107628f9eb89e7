"""Closing the gaps that lost ranks leave."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from undaunted.inprocess.rank_assignment.context import RankAssignment, discard_if_terminated

if TYPE_CHECKING:
    from undaunted.inprocess.rank_assignment.context import RankAssignmentCtx


class ShiftRanks(RankAssignment):
    """Ranks move down and keep their order: without ranks 1 and 2 of 5, rank 4 becomes 2."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        discard_if_terminated(ctx)
        state = ctx.state
        state.rank -= sum(rank < state.rank for rank in ctx.terminated_ranks)
        state.world_size -= len(ctx.terminated_ranks)
        ctx.terminated_ranks = set()
        return ctx


class FillGaps(RankAssignment):
    """Most keep their ranks: the last ones take those that are free, in order.

    Without ranks 1, 4 and 5 of 8, rank 6 becomes 1 and rank 7 becomes 4.
    """

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        discard_if_terminated(ctx)
        state = ctx.state
        terminated = sorted(ctx.terminated_ranks)
        world_size = state.world_size - len(terminated)
        if state.rank >= world_size:
            moving = state.rank - world_size  # how many survivors before it move as well
            moving -= bisect_left(terminated, state.rank) - bisect_left(terminated, world_size)
            state.rank = terminated[moving]
        state.world_size = world_size
        ctx.terminated_ranks = set()
        return ctx
