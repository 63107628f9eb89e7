"""Leaving out groups of ranks that have become too small."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.rank_assignment.context import RankAssignment
from undaunted.inprocess.rank_assignment.exchange import TIMEOUT, key_of, known_of_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from undaunted.inprocess.rank_assignment.context import RankAssignmentCtx
    from undaunted.inprocess.state import State


class FilterCountGroupedByKey(RankAssignment):
    """Ranks with the same key are a group; the groups whose size does not fit are left out.

    It only says which ranks are terminated: compose it with one that closes the gaps,
    ``Compose(ShiftRanks(), FilterCountGroupedByKey(...))``.
    """

    def __init__(
        self,
        key_or_fn: str | Callable[[State], str],
        condition: Callable[[int], bool],
        timeout: timedelta = TIMEOUT,
    ) -> None:
        """Group.

        Args:
            key_or_fn: the key of this rank, or a function that makes it from the state.
            condition: whether a group with so many ranks that are left may stay.
            timeout: for ranks to exchange their keys where the wrapper does not (60 s).
        """
        self.key_or_fn = key_or_fn
        self.condition = condition
        self.timeout = timeout

    def info(self, state: State) -> Any:
        """Return the key, in a list."""
        return [key_of(self.key_or_fn, state)]

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """See `RankAssignment`."""
        told = known_of_all(ctx, "grouped", self.info(ctx.state), self.timeout)
        keys = {rank: key for rank, (key,) in told.items()}
        sizes = Counter(keys.values())
        left_out = {key for key, size in sizes.items() if not self.condition(size)}
        ctx.terminated_ranks |= {rank for rank, key in keys.items() if key in left_out}
        return ctx
