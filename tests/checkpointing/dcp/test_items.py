from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from undaunted.checkpointing.dcp.items import arena_bytes, lay_out, stage_items
from undaunted.checkpointing.format.image import ALIGNMENT
from undaunted.checkpointing.memory.arena import HEADER_BYTES, Arena

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch


@pytest.fixture
def arena() -> Iterator[Arena]:
    one = Arena.create("test", 1 << 18)
    yield one
    one.close()


def planned(state: dict[str, Any]) -> tuple[DefaultSavePlanner, list[Any]]:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, None, True)
    return planner, planner.create_local_plan().items


def test_several_files_in_one_arena(arena: Arena) -> None:
    state: dict[str, Any] = {
        "a": torch.arange(3),
        "text": "x" * 5000,
        "b": torch.ones(2, 2),
        "n": 1,
    }
    planner, items = planned(state)
    laid = [lay_out("one", items[:2]), lay_out("two", items[2:]), lay_out("none", [])]
    assert arena_bytes(laid, 5000) <= arena.size
    for length in (5000, 9000, 10):
        state["text"] = planner.state_dict["text"] = "x" * length
        staged = stage_items(laid, planner.resolve_data, arena)
        assert [file.image.name for file in staged] == ["one", "two", "none"]
        assert staged[2].image.size == 0
        end = HEADER_BYTES
        for file, one in zip(staged, laid, strict=True):
            assert file.image.offset == end
            assert file.image.offset % ALIGNMENT == 0
            end += -(-file.image.size // ALIGNMENT) * ALIGNMENT
            for item, offset, size in one.placed(file.others):
                at = file.image.offset + offset
                content = bytes(arena.memory[at : at + size])
                loaded = torch.load(io.BytesIO(content), weights_only=True)
                expected = state[item.index.fqn]
                assert (
                    loaded.tolist() == expected.tolist()
                    if torch.is_tensor(expected)
                    else loaded == expected
                )


def test_between_items_there_are_zeros(arena: Arena) -> None:
    """Nothing of what was in the arena before gets into a file."""
    planner, items = planned({"a": torch.arange(3), "b": torch.ones(2, 2), "n": 1, "m": "text"})
    laid = [lay_out("one", items)]
    contents = []
    for before in (b"\x00", b"\xff"):
        arena.memory[HEADER_BYTES:] = before * (arena.size - HEADER_BYTES)
        arena.occupant = None
        (file,) = stage_items(laid, planner.resolve_data, arena)
        contents.append(bytes(arena.memory[HEADER_BYTES : HEADER_BYTES + file.image.size]))
    assert contents[0] == contents[1]
