"""Saves of torch's distributed checkpoint by two ranks: what one of them has, all learn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.checkpointing.async_ckpt.jobs import run_ranks

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

PROGRAM = Path(__file__).with_name("saver_program.py")
SCENARIOS = (
    "shards,structure,other_ranks,again,write_fails,planning_fails,writer_dies,own_planners,"
    "rank_dies"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def told(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of one job have told, by scenario; rank 1 kills itself in the last one."""
    return run_ranks(folder, SCENARIOS, stopped=[1], program=PROGRAM)


def test_shards_are_saved_as_they_were_and_read_by_any_world(
    told: list[dict[str, Any]], folder: Path
) -> None:
    full = torch.arange(24.0).reshape(6, 4)
    for rank, told_by in enumerate(told):
        end, shard, replicated = told_by["shards"]
        assert end == {"returned": [0]}
        assert shard == full[rank * 3 : rank * 3 + 3].tolist()
        assert replicated == [1.0] * 5
    alone = {"sharded": torch.zeros(6, 4), "replicated": torch.zeros(5)}
    dcp.load(alone, checkpoint_id=folder / "shards")
    assert torch.equal(alone["sharded"], full)


def test_a_key_that_one_rank_adds_under_a_cache_is_saved(
    told: list[dict[str, Any]], folder: Path
) -> None:
    keys = ["own0", "own1", "replicated", "sharded"]
    for told_by in told:
        saves = told_by["structure"]
        assert [end for end, _, _ in saves] == [{"returned": [n]} for n in range(4)]
        assert [reused for _, reused, _ in saves] == [False, True, False, True]
        assert [names for _, _, names in saves] == [keys, keys, *[sorted([*keys, "more"])] * 2]
    alone = {"more": torch.zeros(2), "own1": torch.zeros(1), "sharded": torch.zeros(6, 4)}
    dcp.load(alone, checkpoint_id=folder / "structure3")
    assert torch.equal(alone["more"], torch.ones(2) * 3)
    assert torch.equal(alone["own1"], torch.ones(1) * 3)
    assert torch.equal(alone["sharded"], torch.arange(24.0).reshape(6, 4) + 3)


def test_plans_of_other_ranks_are_not_used_again(told: list[dict[str, Any]]) -> None:
    """As after a restart inside the process with fewer ranks."""
    for told_by in told:
        assert told_by["other_ranks"] == [
            [{"returned": [0]}, False, True],
            [{"returned": [1]}, True, True],
            [{"returned": [2]}, False, True],
        ]


def test_a_folder_that_is_written_again_has_the_save_that_was_finalized_last(
    told: list[dict[str, Any]],
) -> None:
    ends = ([0], [1], [2, 3])
    for told_by in told:
        assert told_by["again"] == [
            [{"returned": end}, value + 1, 2]
            for end, value in zip(ends, (1.0, 2.0, 4.0), strict=True)
        ]


def test_a_rank_that_cannot_write_is_an_error_on_all(told: list[dict[str, Any]]) -> None:
    for told_by in told:
        first, there, second, files = told_by["write_fails"]
        assert (first["ranks"], first["errno"]) == ([1], 28)
        assert "No space left on device" in first["text"]
        assert re.search(r"write_fails/__1_0\.\w+\.distcp", first["text"])
        assert not there
        assert second == {"returned": [1]}
        assert files == ["__0_0", "__1_0"]


def test_a_state_that_one_rank_cannot_save_is_an_error_on_all(
    told: list[dict[str, Any]],
) -> None:
    for told_by in told:
        first, second = told_by["planning_fails"]
        assert first["ranks"] == [1]
        assert "lambda" in first["text"]
        assert second == {"returned": [0]}


def test_the_death_of_one_writer_is_an_error_on_all(told: list[dict[str, Any]]) -> None:
    for told_by in told:
        first, second = told_by["writer_dies"]
        assert first["ranks"] == [1]
        assert "SIGKILL" in first["text"]
        assert second == {"returned": [1]}


def test_planners_may_have_plans_of_their_own(told: list[dict[str, Any]]) -> None:
    for rank, told_by in enumerate(told):
        refused = told_by["own_planners"].pop(2)
        assert refused["ranks"] == [1]
        assert "OwnPlanner" in refused["text"]
        assert "own.x: an object of type __main__.Stranger" in refused["text"]
        assert told_by["own_planners"] == [
            {"returned": [0]},
            {"returned": [1]},
            {"returned": [2]},
            [False, False],
            [[0.0, 1.0], [2.0, 3.0]][rank],
            {"returned": [3]},
            [False, True],
            [[1.0, 2.0], [3.0, 4.0]][rank],
        ]


def test_a_rank_that_is_killed_costs_the_others_one_save(told: list[dict[str, Any]]) -> None:
    end, there = told[0]["rank_dies"]
    assert "did not answer" in end["text"]
    assert not there
