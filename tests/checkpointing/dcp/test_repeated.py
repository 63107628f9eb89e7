from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from tests.checkpointing.dcp.saved import alone, save
from tests.checkpointing.dcp.test_loading import read
from undaunted.checkpointing.dcp.repeated import is_plain
from undaunted.checkpointing.dcp.saving import Saver

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

VALUES = [
    1,
    1.0,
    True,
    "1",
    b"1",
    None,
    "True",
    0.0,
    -0.0,
    math.inf,
    2**80,
    (1, 1.0),
    (),
    "ä" * 9000,
]


def test_values_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    state = {f"{copy}-{at}": value for copy in range(3) for at, value in enumerate(VALUES)}
    save(tmp_path, state)
    loaded: dict[str, Any] = dict.fromkeys(state)
    read(loaded, tmp_path)
    assert loaded == state
    assert {k: (type(v), repr(v)) for k, v in loaded.items()} == {
        k: (type(v), repr(v)) for k, v in state.items()
    }


def test_lists_are_not_shared(tmp_path: Path) -> None:
    save(tmp_path, {"a": [1], "b": [1]})
    loaded: dict[str, Any] = {"a": None, "b": None}
    read(loaded, tmp_path)
    loaded["a"].append(2)
    assert loaded["b"] == [1]


@pytest.mark.parametrize("value", [[1], {}, (1, [2]), torch.ones(1), type("Text", (str,), {})("a")])
def test_what_can_change_or_is_of_an_own_type_is_not_plain(value: Any) -> None:
    assert not is_plain(value)


def test_each_value_is_written_once(tmp_path: Path) -> None:
    written: list[Any] = []

    class Watched(DefaultSavePlanner):
        def lookup_object(self, index: Any) -> Any:
            written.append(index.fqn)
            return super().lookup_object(index)

    saver = Saver(alone(), Watched)
    state = {str(at): 0.5 for at in range(100)}
    for _ in range(3):
        save(tmp_path, state, saver)
    # One more look at each for the size of the memory, and one for the one that was written.
    assert len(written) == 4 * 100 + 1


def test_a_planner_of_ones_own_decides_how_objects_are_written(tmp_path: Path) -> None:
    class Own(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002
            return super().transform_object(write_item, ("own", object))

    save(tmp_path, {"a": 1}, Saver(alone(), Own))
    loaded = {"a": None}
    read(loaded, tmp_path)
    assert loaded == {"a": ("own", 1)}
