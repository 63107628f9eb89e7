"""Random states: what is saved and loaded is what torch.save and load_state_dict would give."""

from __future__ import annotations

import argparse
import collections
import copy
import datetime as dt
import decimal
import fractions
import io
import pathlib
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.checkpointing.dcp.saved import save
from tests.checkpointing.dcp.test_loading import read
from tests.checkpointing.dcp.test_saving import assert_same

pytestmark = pytest.mark.torch


class Keeper:
    """An object whose state may be anything, as those of users are."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "empty": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["empty"] == {}
        self.kept = state["kept"]


def tensor(shape: list[int], dtype: torch.dtype, first: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) + first).to(dtype).view(shape)


tensors = st.builds(
    tensor,
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    st.integers(0, 9),
)
numbers = st.integers(-(2**70), 2**70) | st.floats()
texts = st.text(max_size=5)
harmless = st.sampled_from(
    [
        b"",
        b"bytes",
        bytearray(),
        collections.deque([1, [2]], maxlen=5),
        pathlib.PurePosixPath("/a/b"),
        dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        dt.date(2026, 1, 2),
        dt.time(1, 2),
        dt.timedelta(seconds=3),
        dt.timezone(dt.timedelta(hours=2), "there"),
        decimal.Decimal("1.50"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=7),
        range(1, 9, 2),
        slice(1, None),
        frozenset({1, "a"}),
        {1, 2},
        1j,
        argparse.Namespace(a=[1]),
        torch.Size([1, 2]),
        torch.float16,
        torch.device("cpu"),
        (collections.Counter("aab"), collections.defaultdict(list, {1: [2]})),
    ]
)
leaves = tensors | numbers | texts | harmless | st.booleans() | st.none()
keys = (
    st.text("ab0", min_size=1, max_size=2)
    | st.integers(-2, 9)
    | st.sampled_from([0.5, 1e300, True, None, (1, "a"), b"k", torch.float32])
)


def unambiguous(made: dict[Any, Any]) -> dict[Any, Any]:
    """Without keys whose texts are the same, which a save refuses."""
    return dict({str(k): (k, v) for k, v in made.items()}.values())


def dictionaries(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    kinds = (dict, collections.OrderedDict, lambda of: collections.defaultdict(list, of))
    made = st.dictionaries(keys, inner, max_size=3).map(unambiguous)
    return st.builds(lambda kind, of: kind(of), st.sampled_from(kinds), made)


states = st.recursive(
    leaves,
    lambda inner: (
        dictionaries(inner) | st.lists(inner, max_size=3) | st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> None:
    """Equal in values, types and types of keys; the order of keys does not matter."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, dict):
        assert {repr(k) for k in one} == {repr(k) for k in other}
        assert {type(k) for k in one} == {type(k) for k in other}
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, (list, tuple, collections.deque)):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            same(mine, its)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert_same(one, other)
    else:
        assert repr(one) == repr(other)


def as_torch_does(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)


@settings(max_examples=150)
@example({"0": None}, collections.OrderedDict())
@given(states, states)
def test_an_object_gets_all_that_was_saved_of_it(saved: Any, fresh: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), {"o": Keeper(saved)})
        mine = Keeper(copy.deepcopy(fresh))
        read({"o": mine}, Path(folder))
    same(mine.kept, as_torch_does(saved))


plain = st.recursive(
    numbers | texts | harmless | st.none(),
    lambda inner: dictionaries(inner) | st.lists(inner, max_size=3),
    max_leaves=6,
)


def has_dictionary(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(has_dictionary, value)))


@settings(max_examples=100)
@example([0, collections.OrderedDict()], [0, {}])
@given(states, plain)
def test_plain_data_are_replaced(saved: Any, fresh: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), {"d": {"x": saved}})
        mine: dict[str, Any] = {"d": {"x": copy.deepcopy(fresh)}}
        read(mine, Path(folder))
    if not has_dictionary(fresh):  # those keep their own type
        same(mine["d"]["x"], as_torch_does(saved))


Shape = Any
shapes: st.SearchStrategy[Shape] = st.recursive(
    st.just("object"),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.lists(inner, min_size=1, max_size=2).map(tuple)
        | st.dictionaries(keys, inner, min_size=1, max_size=3).map(unambiguous)
    ),
    max_leaves=5,
)


def filled(shape: Shape, owners: list[Keeper], values: Any) -> Any:
    if isinstance(shape, dict):
        return {key: filled(inner, owners, values) for key, inner in shape.items()}
    if isinstance(shape, (list, tuple)):
        return type(shape)(filled(inner, owners, values) for inner in shape)
    owners.append(Keeper(next(values)))
    return owners[-1]


@settings(max_examples=60)
@given(shapes, st.lists(states, min_size=1, max_size=3))
def test_objects_at_any_depth_stay_and_are_filled(shape: Shape, kept: list[Any]) -> None:
    def cycled() -> Any:
        while True:
            yield from kept

    saved: list[Keeper] = []
    fresh: list[Keeper] = []
    state = {"deep": filled(shape, saved, cycled())}
    mine = {"deep": filled(shape, fresh, iter(lambda: None, 0))}
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), state)
        read(mine, Path(folder))
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, Keeper):
            found.append(value)
        else:
            for inner in value.values() if isinstance(value, dict) else value:
                look(inner)

    look(mine["deep"])
    assert {id(one) for one in found} == {id(one) for one in fresh}
    for one, other in zip(fresh, saved, strict=True):
        same(one.kept, as_torch_does(other.kept))
