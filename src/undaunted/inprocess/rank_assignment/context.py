"""What a rank assignment is, and what it is given."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.compose import Compose
from undaunted.inprocess.exception import RestartError
from undaunted.inprocess.state import Mode

if TYPE_CHECKING:
    from undaunted.inprocess.state import State


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
    """Several rank assignments; each gets what it wanted all to know."""

    def info(self, state: State) -> Any:
        """Return a list of what the assignments want to be known, None if none wants anything."""
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
    """Gives ranks to those who are left, and says which of them call the function."""

    composition = Assignments

    @abc.abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign.

        Raises:
            RankDiscarded: this rank is left out.
        """
        raise NotImplementedError

    def info(self, state: State) -> Any:  # noqa: ARG002 - most need to know nothing
        """Return what all ranks are to know of this one before ranks are assigned.

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
