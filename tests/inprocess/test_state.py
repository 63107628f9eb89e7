from __future__ import annotations

import dataclasses
import os

import pytest

from undaunted.inprocess.state import FIELDS, FrozenState, Mode, State


def test_initial_values_are_those_of_the_beginning() -> None:
    state = State(rank=2, world_size=4)
    assert (state.initial_rank, state.initial_world_size) == (2, 4)
    state.rank, state.world_size = 1, 3
    assert (state.initial_rank, state.initial_world_size) == (2, 4)


def test_from_env(monkeypatch: pytest.MonkeyPatch) -> None:
    assert State.from_env() == State(0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert State.from_env() == State(3, 8)


def test_from_env_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "None")
    with pytest.raises(ValueError, match="RANK='None' is not a number"):
        State.from_env()


@pytest.mark.parametrize(("active_rank", "text"), [(1, "1"), (None, "None")])
def test_variables_are_those_of_active_ranks(
    active_rank: int | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    State(5, 6, active_rank, 4).set_distributed_vars()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (text, "4")


def test_advance() -> None:
    state = State(0, 1, fn_exception=ValueError("bad"))
    state.advance()
    assert (state.iteration, state.fn_exception) == (1, None)


def test_frozen() -> None:
    state = State(1, 2, mode=Mode.ACTIVE, iteration=3)
    frozen = state.freeze()
    assert {name: getattr(frozen, name) for name in FIELDS} == dataclasses.asdict(state)
    assert tuple(field.name for field in dataclasses.fields(FrozenState)) == FIELDS
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.rank = 3  # type: ignore[misc]


def test_copy_from() -> None:
    state = State(0, 1)
    state.copy_from(State(1, 2, mode=Mode.TERMINATED), fields=["rank"])
    assert (state.rank, state.world_size) == (1, 1)
    other = State(1, 2, mode=Mode.TERMINATED).freeze()
    state.copy_from(other)
    assert state.freeze() == other


def test_forget_assignment() -> None:
    state = State(1, 2, 1, 2, mode=Mode.ACTIVE, iteration=4)
    state.forget_assignment()
    assert state == State(1, 2, iteration=4)
