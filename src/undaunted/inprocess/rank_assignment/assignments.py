"""Rank assignments: the interface, closing gaps, which ranks are active, groups of ranks.

Also how ranks know each other's keys: from the wrapper, or exchanged over the store.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from bisect import bisect_left
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.barriers import barrier
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.exception import RestartError
from undaunted.inprocess.state import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.inprocess.state import State


TIMEOUT = timedelta(seconds=60)
_KEYS_AT_ONCE = 4096
_NEEDED = ("add", "set", "multi_get", "wait")  # of a store


class RankDiscarded(RestartError):  # noqa: N818 - the name users know
    """The rank assignment has left this rank out."""

    __module__ = "undaunted.inprocess.rank_assignment"  # where programs import it from


@dataclasses.dataclass
class RankAssignmentCtx:
    """What a rank assignment gets and returns, changed.

    Every rank runs it for itself, with the same content but for ``state``, and must come to a
    result that fits those of the others.

    Attributes:
        state: of this rank, ranks and sizes as they were in the iteration before.
        store: of torch, for what ranks want to tell each other; None = there is none.
        terminated_ranks: ranks of the iteration before that are gone. Whoever closes the gaps
            clears it.
        info: what `RankAssignment.info` has returned in each rank, by rank of the iteration before;
            None = it was not exchanged.
    """

    state: State
    store: Any
    terminated_ranks: set[int]
    info: dict[int, Any] | None = None


class Assignments(Compose):
    """Several rank assignments; each gets its own part of the information of all ranks."""

    def info(self, state: State) -> Any:
        """Return the information of each assignment, in a list; None if none has any."""
        wanted = [getattr(each, "info", _nothing)(state) for each in self.instances]
        return None if all(each is None for each in wanted) else wanted

    def _call_one(self, position: int, args: tuple[Any, ...]) -> Any:
        (ctx,) = args
        if not isinstance(ctx, RankAssignmentCtx):
            return super()._call_one(position, args)
        info = ctx.info
        ctx.info = _part(info, position)
        try:
            return super()._call_one(position, args)
        finally:
            ctx.info = info


class RankAssignment(abc.ABC):
    """Gives ranks to the processes that are left, and says which of them call the function."""

    composition = Assignments

    @abc.abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign.

        Raises:
            RankDiscarded: this rank is left out.
        """
        raise NotImplementedError

    def info(self, state: State) -> Any:  # noqa: ARG002 - most need to know nothing
        """Return information about this rank that all ranks need before ranks are assigned.

        Returns:
            Something that JSON can hold; None = nothing.
        """
        return None


def discard_if_terminated(ctx: RankAssignmentCtx) -> None:
    """Leave the caller out if it is among the terminated ranks.

    Raises:
        RankDiscarded: it is.
    """
    if ctx.state.rank in ctx.terminated_ranks:
        rank = ctx.state.rank
        ctx.state.mode = Mode.TERMINATED
        ctx.state.active_rank = None
        raise RankDiscarded(f"rank {rank} (initially {ctx.state.initial_rank}) is left out")


def _part(info: dict[int, Any] | None, position: int) -> dict[int, Any] | None:
    if info is None:
        return None
    parts = ((rank, each[position]) for rank, each in info.items() if each is not None)
    return {rank: part for rank, part in parts if part is not None}


def _nothing(_state: State) -> None:
    return None


def key_of(key_or_fn: str | Callable[[State], str], state: State) -> str:
    """Return the key itself, or what the function makes of the state, as text."""
    return str(key_or_fn(state)) if callable(key_or_fn) else key_or_fn


def known_of_all(
    ctx: RankAssignmentCtx, name: str, ours: Any, timeout: timedelta = TIMEOUT
) -> dict[int, Any]:
    """Return the information of every rank that is left, by rank.

    Outside of the wrapper, this is a collective over ``ctx.store``.

    Args:
        ctx: holds it already within the wrapper.
        name: of the kind of exchange; all ranks make the same ones, in the same order.
        ours: what this rank says; JSON-able.
        timeout: for the others to come.

    Raises:
        ValueError: there is neither information nor a store.
        TypeError: the store is not like one of torch's.
        BarrierError: ranks did not come.
    """
    ranks = [r for r in range(ctx.state.world_size) if r not in ctx.terminated_ranks]
    if ctx.info is not None:
        return {rank: ctx.info[rank] for rank in ranks if rank in ctx.info}
    if ctx.store is None:
        raise ValueError("a store is needed, for ranks to tell each other their keys")
    missing = [name for name in _NEEDED if not hasattr(ctx.store, name)]
    if missing:
        raise TypeError(
            f"{type(ctx.store).__name__} has no {', '.join(missing)}: for ranks to tell each other "
            "their keys, give a store of torch's, such as undaunted.inprocess.store.TCPStore, or "
            "what they would tell as RankAssignmentCtx(..., info={rank: keys})"
        )
    return _exchange(ctx, f"{name}:{len(ranks)}", ranks, ours, timeout)


def _exchange(
    ctx: RankAssignmentCtx, name: str, ranks: Sequence[int], ours: Any, timeout: timedelta
) -> dict[int, Any]:
    store, rank = ctx.store, ctx.state.rank
    if rank in ctx.terminated_ranks:
        return {}
    # Nobody is in the next exchange before all are through with this one: see the second barrier.
    name = f"{name}:{(store.add(f'inprocess_{name}', 1) - 1) // len(ranks)}"
    store.set(_key(name, rank), json.dumps(ours))
    barrier(store, [rank], f"{name}:told", len(ranks), timeout)
    told: dict[int, Any] = {}
    for at in range(0, len(ranks), _KEYS_AT_ONCE):
        some = ranks[at : at + _KEYS_AT_ONCE]
        values = store.multi_get([_key(name, each) for each in some])
        told |= {each: json.loads(value) for each, value in zip(some, values, strict=True)}
    barrier(store, [rank], f"{name}:read", len(ranks), timeout)
    return told


def _key(name: str, rank: int) -> str:
    return f"inprocess_{name}_{rank}"


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
    """A rank assignment that leaves ranks as they are, and says only which of them are active."""


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
