"""Copies whose content is fixed."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import pytest

from undaunted.checkpointing.memory.copy import host_copy

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch


class Point(NamedTuple):
    x: Any
    y: int


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6)[::2],
        torch.tensor(3.5),
        torch.ones(4, dtype=torch.bfloat16),
        torch.ones(0, 3),
        torch.nn.Parameter(torch.ones(3)),
        torch.eye(3).to_sparse(),
    ],
)
def test_a_copied_tensor_does_not_change_with_its_original(tensor: Any) -> None:
    before = tensor.detach().clone()
    copied = host_copy({"a": [tensor]})["a"][0]
    with torch.no_grad():
        tensor.zero_()
    assert copied.dtype == before.dtype
    assert torch.equal(copied.to_dense(), before.to_dense())
    assert copied.requires_grad == tensor.requires_grad


def test_the_same_elements_are_copied_once() -> None:
    weight = torch.ones(3)
    other = torch.ones(3)
    copied = host_copy([weight, weight.detach(), weight.view(3), weight[:2], other])
    assert copied[0] is copied[1] is copied[2]
    assert len({one.data_ptr() for one in copied}) == 3


def test_views_that_are_conjugated_or_negated_are_others() -> None:
    number = torch.tensor([1 + 2j])
    copied = host_copy([number, number.conj(), number.imag, number.conj().imag])
    assert [one.tolist() for one in copied] == [[1 + 2j], [1 - 2j], [2.0], [-2.0]]


def test_containers_are_built_anew_and_keep_their_kind() -> None:
    state = collections.defaultdict(
        list, a=[1], p=Point(torch.ones(1), 2), t=(1, {2}), b=bytearray(b"x")
    )
    copied = host_copy(state)
    state["a"].append(2)
    state["b"][0] = 0
    assert copied["a"] == [1]
    assert copied["b"] == b"x"
    assert copied["t"] == (1, {2})
    assert type(copied["p"]) is Point
    assert copied.default_factory is list
    ordered = torch.nn.Linear(1, 1).state_dict()
    assert host_copy(ordered)._metadata == ordered._metadata


def test_arrays_and_on_demand_other_objects_are_copied() -> None:
    array, other = np.ones(3), collections.Counter("ab")
    copied = host_copy([array, other, deque := collections.deque([[1]])], deep=True)
    array[:] = 0
    deque[0].append(2)
    other["a"] = 5
    assert copied[0].sum() == 3
    assert copied[1]["a"] == 1
    assert copied[2][0] == [1]
    kept = object()
    assert host_copy([kept])[0] is kept
