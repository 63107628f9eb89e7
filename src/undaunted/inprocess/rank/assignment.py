"""Assigning ranks from a record, and telling the process which one it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.inprocess.exception import RestartAbort
from undaunted.inprocess.rank.epoch_store import EpochStore
from undaunted.inprocess.rank_assignment.active import activate
from undaunted.inprocess.rank_assignment.context import RankAssignmentCtx
from undaunted.inprocess.state import Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.core.messages import Record
    from undaunted.inprocess.parameters import Parameters
    from undaunted.inprocess.rank.session import Session
    from undaunted.inprocess.state import State


class LazyContext(RankAssignmentCtx):
    """Connects to the epoch's store only when the rank assignment asks for it."""

    @property
    def store(self) -> Any:
        """The store, connected to."""
        return self._store.get() if isinstance(self._store, EpochStore) else self._store

    @store.setter
    def store(self, store: Any) -> None:
        self._store = store


def wanted_info(rank_assignment: Callable[..., Any], state: State) -> Any:
    """Return what all ranks are to know of this one; None = nothing."""
    info = getattr(rank_assignment, "info", None)
    return None if info is None else info(state)


def assign(parameters: Parameters, state: State, record: Record, session: Session) -> None:
    """Give this process its rank of the epoch, in ``state`` and in the environment.

    Raises:
        RankDiscarded: it gets none.
        RestartAbort: nobody would call the function.
        Exception: whatever the rank assignment raises.
    """
    state.world_size = record.world_size
    if record.joined:
        state.forget_assignment()
        state.rank = record.joined.get(session.connection.job_rank, state.rank)
    context = LazyContext(state, session.store, set(record.terminated), record.info or None)
    context = parameters.rank_assignment(context)
    state.copy_from(context.state)
    if session.all_active or state.mode is Mode.INITIALIZED:
        session.all_active = True  # it gives ranks only, and leaves the rest to a filter
        activate(state, state.world_size)
    if parameters.rank_filter is not None:
        state.copy_from(parameters.rank_filter(state))
    if state.active_world_size == 0:
        raise RestartAbort(
            f"no rank is active: rank assignment and filter leave none of {state.world_size} ranks "
            "that would call the function"
        )
    state.set_distributed_vars()
    session.connection.keep(state.rank, state.world_size)
    session.page.assigned(state.rank)
