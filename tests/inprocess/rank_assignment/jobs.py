"""Runs rank assignments of a whole job in one process."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.rank_assignment import RankAssignmentCtx, RankDiscarded
from undaunted.inprocess.state import Mode, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Job:
    """Every rank has a state and an assignment of its own."""

    def __init__(self, world_size: int, make: Callable[[], Any], store: Any = None) -> None:
        self.states = [State(rank, world_size) for rank in range(world_size)]
        self.assignments = [make() for _ in range(world_size)]
        self.make = make
        self.store = store
        self.assign(())

    def lose(self, initial_ranks: Iterable[int]) -> None:
        """Lose ranks, named as they were at first, and assign anew."""
        gone = {s.rank for s in self.states if s.initial_rank in set(initial_ranks)}
        kept = [at for at, state in enumerate(self.states) if state.rank not in gone]
        self.states = [self.states[at] for at in kept]
        self.assignments = [self.assignments[at] for at in kept]
        for state in self.states:
            state.advance()
        self.assign(gone)

    def join(self) -> None:
        """Have a process join."""
        world_size = self.states[0].world_size + 1
        for state in self.states:
            state.world_size = world_size
            state.forget_assignment()
        self.states.append(State(world_size - 1, world_size, initial_rank=100))
        self.assignments.append(self.make())
        self.assign(())

    def assign(self, terminated: Iterable[int]) -> None:
        info = {}
        for state, assignment in zip(self.states, self.assignments, strict=True):
            told = getattr(assignment, "info", lambda _: None)(state)
            if told is not None:
                info[state.rank] = json.loads(json.dumps(told))
        left = []
        for state, assignment in zip(self.states, self.assignments, strict=True):
            ctx = RankAssignmentCtx(state, self.store, set(terminated), copy.deepcopy(info))
            try:
                ctx = assignment(ctx)
            except RankDiscarded:
                assert state.mode is Mode.TERMINATED
                continue
            assert ctx.terminated_ranks == set()
            left.append((ctx.state, assignment))
        self.states = [state for state, _ in left]
        self.assignments = [assignment for _, assignment in left]

    def check(self) -> None:
        """All fits together."""
        assert {state.world_size for state in self.states} <= {len(self.states)}
        assert sorted(state.rank for state in self.states) == list(range(len(self.states)))
        active = [state for state in self.states if state.mode is Mode.ACTIVE]
        assert {state.active_world_size for state in self.states} <= {len(active)}
        assert sorted(state.active_rank for state in active) == list(range(len(active)))
        reserves = [state for state in self.states if state.mode is not Mode.ACTIVE]
        assert all(s.mode is Mode.INACTIVE and s.active_rank is None for s in reserves)

    def active(self) -> list[int]:
        """Initial ranks by active rank."""
        active = [state for state in self.states if state.active_rank is not None]
        return [s.initial_rank for s in sorted(active, key=lambda s: s.active_rank or 0)]

    def ranks(self) -> list[int]:
        """Initial ranks by rank."""
        return [s.initial_rank for s in sorted(self.states, key=lambda s: s.rank)]


class DictStore:
    """What is used of a store, in one process and without waiting."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str], timeout: Any) -> None:
        assert all(key in self.values for key in keys)
