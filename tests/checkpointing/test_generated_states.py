"""States that are made up: through the arena, the writer and the files, and back."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from undaunted.checkpointing import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
DEADLINE_S = 60


class Own(torch.Tensor):
    """A class of somebody's without a layout of its own."""


def values(shape: list[int], dtype: torch.dtype, first: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + first) % 100).to(torch.float32).to(dtype).view(shape)


# What becomes of contiguous memory: views with any strides, and tensors that are none of their own.
VIEWS: dict[str, Any] = {
    "as it is": lambda t: t,
    "turned": lambda t: t.t() if t.ndim == 2 else t,
    "part": lambda t: t[1:] if t.ndim else t,
    "every second": lambda t: t[::2] if t.ndim else t,
    "column": lambda t: t[:, :1] if t.ndim > 1 else t,
    "repeated": lambda t: t.unsqueeze(0).expand(3, *t.shape),
    "conjugated": lambda t: t.conj(),
    "one of its values": lambda t: t.reshape(-1)[0] if t.numel() else t,
}
bases = st.builds(
    values,
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 90),
)
views = st.builds(lambda base, view: VIEWS[view](base), bases, st.sampled_from(list(VIEWS)))


def packed(shape: list[int], first: int) -> Any:
    return TwoTensor(values(shape, torch.float32, first), values(shape, torch.float32, first + 1))


tensors = (
    views
    | bases.filter(lambda t: t.is_floating_point() and t.itemsize > 1).map(torch.nn.Parameter)
    | bases.map(lambda t: t.as_subclass(Own))
    | st.builds(packed, st.lists(st.integers(0, 3), max_size=2), st.integers(0, 9))
)
leaves = tensors | st.integers() | st.text(max_size=3) | st.none() | st.binary(max_size=3)
keys = st.text("ab", min_size=1, max_size=2) | st.integers(0, 9)


def named(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    kinds = st.sampled_from([dict, collections.OrderedDict])
    made = st.dictionaries(keys, inner, max_size=4)
    return st.builds(lambda kind, of: kind({str(k): v for k, v in of.items()}), kinds, made)


states = st.recursive(
    leaves, lambda inner: named(inner) | st.lists(inner, max_size=4), max_leaves=9
)
roots = st.dictionaries(st.text("abc", min_size=1, max_size=2), states, max_size=5)


def many(count: int) -> dict[str, Any]:
    """Small tensors of all types, two names for each tenth."""
    made = {f"t{n}": values([n % 7], DTYPES[n % len(DTYPES)], n) for n in range(count)}
    tied = {f"tied{n}": made[f"t{n}"] for n in range(0, count, 10)}
    return {"many": made | tied}


def emptied(value: Any) -> Any:
    """The same with other values, to be loaded into."""
    if type(value) is TwoTensor:
        return TwoTensor(emptied(value.a), emptied(value.b))
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(emptied(value.detach()))
    if isinstance(value, torch.Tensor):
        strides = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return (strides if 0 not in value.stride() else torch.empty_like(value)).zero_()
    if isinstance(value, dict):
        return type(value)({key: emptied(one) for key, one in value.items()})
    return [emptied(one) for one in value] if isinstance(value, list) else None


def same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if type(one) is TwoTensor:
            assert type(other) is TwoTensor
            same(one.a, other.a)
            same(one.b, other.b)
        else:
            assert content(one) == content(other)
    elif isinstance(one, dict):
        assert list(map(repr, sorted(one))) == list(map(repr, sorted(other)))
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            same(mine, its)
    else:
        assert one == other


def content(tensor: torch.Tensor) -> list[Any]:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    plain.copy_(tensor.detach().as_subclass(torch.Tensor))
    return plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []


def places(value: Any, found: list[tuple[torch.Tensor, int]]) -> list[tuple[torch.Tensor, int]]:
    """The tensors of a state, and where their memory is."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        found.append((value, value.data_ptr()))
    for one in value.values() if isinstance(value, dict) else value if type(value) is list else ():
        places(one, found)
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpointer]:
    place = tmp_path_factory.mktemp("generated")
    with (
        torch.serialization.safe_globals([TwoTensor, Own]),
        Checkpointer(place, timeout=DEADLINE_S, keep=1) as opened,
    ):
        yield opened


@pytest.mark.filterwarnings("ignore:.*non-tensor keys.*")
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@example({})
@example({"a": {}})
@example(many(3000))
@example(many(1))
@given(roots)
def test_what_was_saved_is_loaded_into_the_same_memory(
    checkpoints: Checkpointer, state: dict[str, Any]
) -> None:
    step = (checkpoints.latest() or 0) + 1
    checkpoints.save(step, state)
    checkpoints.wait()
    mine = emptied(state)
    before = places(mine, [])
    assert checkpoints.load(mine, step) == step
    same(state, mine)
    here = places(mine, [])
    assert [id(one) for one, _ in before] == [id(one) for one, _ in here]
    assert [place for _, place in before] == [place for _, place in here]
