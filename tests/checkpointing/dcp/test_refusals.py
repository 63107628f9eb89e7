from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import io
import pathlib
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from tests.checkpointing.dcp.saved import alone, save
from undaunted.checkpointing.dcp.refusals import Refusals
from undaunted.checkpointing.dcp.saving import Saver

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
        (pathlib.PurePosixPath("/x"), "PurePosixPath"),
        (dt.datetime(2020, 1, 1), "datetime.datetime"),
        ((1, {2: [Settings()]}), "Settings"),
    ],
)
def test_what_loading_refuses_is_told_once(
    value: Any, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = Saver(alone())
    for _ in range(2):
        save(tmp_path, {"a": torch.ones(1), "own": {"x": value, "y": value}}, saver)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.text.count("own.x has objects of types") == 1
    assert name in caplog.text
    assert "torch.serialization.add_safe_globals" in caplog.text


def test_another_type_under_a_name_that_was_harmless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = Saver(alone())
    for value in (None, [], ["csome.thing\nelse\n"]):
        save(tmp_path, {"best": value}, saver)
    assert not caplog.records
    save(tmp_path, {"best": [Settings()]}, saver)
    assert "best has" in caplog.text


def test_what_loads_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numpy = pytest.importorskip("numpy")
    kept = {
        "array": numpy.arange(3),
        "number": numpy.float64(1),
        "set": {1},
        "ordered": [collections.OrderedDict(a=1)],
        "device": torch.device("cpu"),
    }
    save(tmp_path, kept)
    assert not caplog.records


def test_types_that_were_allowed_are_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.serialization.safe_globals([Settings]):
        save(tmp_path, {"own": Settings()})
    assert not caplog.records


def test_long_ones_are_looked_through_once_for_each_name(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for value, told in ((None, 0), (Settings(), 0), (Settings(), 1)):
        buffer = io.BytesIO()
        torch.save(("x" * (2 << 20), value), buffer)
        refusals.look(buffer.getbuffer(), f"name {told}")
        assert len(caplog.records) == told
