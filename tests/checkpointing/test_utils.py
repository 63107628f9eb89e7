"""Copies whose content is fixed, comparisons and times."""

from __future__ import annotations

import collections
import gc
import logging
from typing import Any, NamedTuple

import pytest

from undaunted.checkpointing.utils import (
    debug_msg,
    debug_time,
    dict_list_map_outplace,
    diff,
    logger_stack,
    preload_tensors,
    snapshot,
    wrap_for_async,
)

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
    copied = preload_tensors({"a": [tensor]})["a"][0]
    with torch.no_grad():
        tensor.zero_()
    assert copied.dtype == before.dtype
    assert torch.equal(copied.to_dense(), before.to_dense())
    assert copied.requires_grad == tensor.requires_grad


def test_the_same_elements_are_copied_once() -> None:
    weight = torch.ones(3)
    other = torch.ones(3)
    copied = snapshot([weight, weight.detach(), weight.view(3), weight[:2], other])
    assert copied[0] is copied[1] is copied[2]
    assert len({one.data_ptr() for one in copied}) == 3


def test_views_that_are_conjugated_or_negated_are_others() -> None:
    number = torch.tensor([1 + 2j])
    copied = snapshot([number, number.conj(), number.imag, number.conj().imag])
    assert [one.tolist() for one in copied] == [[1 + 2j], [1 - 2j], [2.0], [-2.0]]


def test_containers_are_built_anew_and_keep_their_kind() -> None:
    state = collections.defaultdict(
        list, a=[1], p=Point(torch.ones(1), 2), t=(1, {2}), b=bytearray(b"x")
    )
    copied = snapshot(state)
    state["a"].append(2)
    state["b"][0] = 0
    assert copied["a"] == [1]
    assert copied["b"] == b"x"
    assert copied["t"] == (1, {2})
    assert type(copied["p"]) is Point
    assert copied.default_factory is list
    ordered = torch.nn.Linear(1, 1).state_dict()
    assert snapshot(ordered)._metadata == ordered._metadata


def test_arrays_and_on_demand_other_objects_are_copied() -> None:
    array, other = np.ones(3), collections.Counter("ab")
    copied = snapshot([array, other, deque := collections.deque([[1]])], deep=True)
    array[:] = 0
    deque[0].append(2)
    other["a"] = 5
    assert copied[0].sum() == 3
    assert copied[1]["a"] == 1
    assert copied[2][0] == [1]
    kept = object()
    assert snapshot([kept])[0] is kept


def test_a_function_is_applied_to_everything_that_is_no_container() -> None:
    nested = {"a": [1, {"b": 2}], "c": 3}
    assert dict_list_map_outplace(lambda x: x * 10, nested) == {"a": [10, {"b": 20}], "c": 30}
    assert nested["c"] == 3


def test_differences_are_told_by_their_paths() -> None:
    left = {"a": [1, torch.ones(2)], "b": 1, "n": np.ones(1), "l": [1]}
    right = {"a": [1, torch.zeros(2)], "c": 1, "n": np.ones(1), "l": [1, 2]}
    assert diff(left, right) == (
        [("b",)],
        [("c",), ("l", 1)],
        [(("a", 1), torch.Tensor, torch.Tensor)],
    )
    assert diff({"a": 1}, {"a": [1]})[2] == [(("a",), int, list)]
    assert diff(left, left) == ([], [], [])


def test_no_garbage_is_collected_while_a_wrapped_function_runs() -> None:
    assert wrap_for_async(gc.isenabled)() is False
    assert gc.isenabled()


def test_times_are_logged_with_the_names_around_them(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("times")
    with caplog.at_level(logging.DEBUG, "times"):
        with debug_time("save", logger), debug_time("copy"):
            debug_msg("hello")
        with debug_time("short", logger, threshold=100):
            pass
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == "save.copy hello"
    assert [text.split()[0] for text in texts] == ["save.copy", "save.copy", "save"]
    with logger_stack("a") as (names, _):
        assert names == "a"
