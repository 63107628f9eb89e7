from __future__ import annotations

import collections
import dataclasses
import enum
import io
import math
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from tests.checkpointing.dcp.saved import alone, save
from tests.checkpointing.dcp.test_loading import read
from undaunted.checkpointing.dcp.objects import Refusals, is_plain
from undaunted.checkpointing.dcp.saving import Saver
from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@dataclasses.dataclass
class Settings:
    width: int = 1


class Colour(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - as a user may have it


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Settings(), "Settings"),
        (Colour.RED, "Colour"),
        (Point(1, 2), "Point"),
        (torch.Generator(), "Generator"),
        ((1, {2: [Settings()]}), "Settings"),
    ],
)
def test_what_loading_refuses_is_refused(value: Any, name: str, tmp_path: Path) -> None:
    saver = Saver(alone())
    for _ in range(2):
        with pytest.raises(SaveError, match=rf"own\.x has objects of types .*{name}") as caught:
            save(tmp_path, {"a": torch.ones(1), "own": {"x": value}}, saver)
        assert "torch.serialization.add_safe_globals" in str(caught.value)


def test_another_type_under_a_name_that_was_harmless(tmp_path: Path) -> None:
    saver = Saver(alone())
    for value in (None, [], ["csome.thing\nelse\n"]):
        save(tmp_path, {"best": value}, saver)
    with pytest.raises(SaveError, match="best has"):
        save(tmp_path, {"best": [Settings()]}, saver)


def test_an_integer_that_torch_does_not_read(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="big cannot be loaded"):
        save(tmp_path, {"big": 2**3000})


def test_types_that_were_allowed_are_saved(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Settings]):
        save(tmp_path, {"own": Settings()})


def test_what_the_program_has_allowed_stays_allowed(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([collections.deque]):
        save(tmp_path, {"own": collections.deque([1])})
        read({"own": None}, tmp_path)
        assert collections.deque in torch.serialization.get_safe_globals()


def test_long_ones_are_looked_through_once_for_each_name() -> None:
    refusals = Refusals()
    for value in (None, Settings()):
        buffer = io.BytesIO()
        torch.save(("x" * (2 << 20), value), buffer)
        refusals.look(buffer.getbuffer(), "same")
    with pytest.raises(SaveError, match="other has"):
        refusals.look(buffer.getbuffer(), "other")


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


def test_each_value_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    real = torch.save

    def watched(value: Any, *args: Any, **settings: Any) -> None:
        written.append(value)
        real(value, *args, **settings)

    monkeypatch.setattr(torch, "save", watched)
    saver = Saver(alone())
    state = {str(at): 0.5 for at in range(100)}
    for _ in range(3):
        save(tmp_path, state, saver)
    assert written == [0.5]


def test_a_planner_of_ones_own_decides_how_objects_are_written(tmp_path: Path) -> None:
    class Own(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002
            return super().transform_object(write_item, ("own", object))

    save(tmp_path, {"a": 1}, Saver(alone(), Own))
    loaded = {"a": None}
    read(loaded, tmp_path)
    assert loaded == {"a": ("own", 1)}
