from __future__ import annotations

import collections
import dataclasses
import enum
import io
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from tests.checkpointing.dcp.saved import alone, save
from tests.checkpointing.dcp.test_loading import read
from undaunted.checkpointing.dcp.refusals import Refusals
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
