"""Asynchronous requests of several ranks: what one of them has, all of them learn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkpointing.async_ckpt.jobs import run_ranks

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.e2e]

SCENARIOS = "one_fails,all_or_none,different_saves,done_here_and_now,exchange,stopped"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the ranks of one job have told, by scenario; rank 1 stops itself in the last one."""
    return run_ranks(tmp_path_factory.mktemp("job"), SCENARIOS, stopped=[1])


def test_a_failure_of_one_rank_is_the_same_error_on_all_and_the_next_save_works(
    told: list[dict[str, Any]],
) -> None:
    for rank in told:
        first, second, ends = rank["one_fails"]
        assert "rank 1 " in first["text"]
        assert "No space left on device: '/full/file'" in first["text"]
        assert (first["ranks"], first["errno"]) == ([1], 28)
        assert (second, ends) == ({"returned": [1]}, [1])


def test_a_save_is_finalized_when_it_is_done_everywhere(told: list[dict[str, Any]]) -> None:
    assert [rank["all_or_none"] for rank in told] == [[[], [0]]] * 2


def test_different_saves_are_noticed_before_anything_is_finalized(
    told: list[dict[str, Any]],
) -> None:
    for rank in told:
        queued, alone, ends = rank["different_saves"]
        assert "different saves, 0 and 2" in queued["text"]
        assert "different saves, 0 and 1" in alone["text"]
        assert ends == []


def test_a_failure_here_and_now_is_the_same_error_on_all(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert "rank 0 " in rank["done_here_and_now"]["text"]
        assert "ValueError: bad" in rank["done_here_and_now"]["text"]


def test_a_stopped_rank_costs_the_others_a_deadline(told: list[dict[str, Any]]) -> None:
    for end in told[0]["stopped"]:
        assert "did not answer within 2 s" in end["text"]


def test_bytes_of_all_ranks_reach_a_coordinator_and_its_answers_one_rank_each(
    told: list[dict[str, Any]],
) -> None:
    assert told[0]["exchange"] == [None, ["for rank 0", "", ""]]
    assert told[1]["exchange"] == [[0, 3], ["1", "all", ""]]
