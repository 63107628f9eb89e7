"""Which checkpoint is taken, and that ranks begin alike."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.training import gloo_ranks
from undaunted.integrations.resuming import _difference, begin_alike, newest


def check(name: str) -> None:
    """The first letter says what is wrong with it."""
    if name.startswith("t"):
        raise EOFError("torn")
    if name.startswith("w"):
        raise ValueError("weights")


def test_the_first_one_of_use_is_taken_and_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert newest([], check) is None
    assert newest(["a", "t", "w"], check) == "a"
    assert caplog.messages == []


def test_what_was_passed_over_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "undaunted")
    assert newest(["t2", "w1", "a", "t0"], check) == "a"
    (line,) = caplog.messages
    assert all(text in line for text in ("t2 (torn)", "w1 (weights)", "taken: a"))
    assert "t0" not in line


def test_only_rank_0_says_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert newest(["t", "a"], check) == "a"
    assert caplog.messages == []


def test_after_a_kill_in_the_first_save_training_begins_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert newest(["t"], check) is None
    assert "t (torn); taken: none" in caplog.text


@pytest.mark.parametrize("found", [["w"], ["t1", "t2"], ["t", "w"], ["w1", "w2"]])
def test_it_does_not_begin_anew_if_others_are_of_no_use(found: list[str]) -> None:
    with pytest.raises(ValueError, match="move them away") as refused:
        newest(found, check)
    assert all(f"{name} (" in str(refused.value) for name in found)


def test_not_all_of_a_thousand_are_named() -> None:
    with pytest.raises(ValueError, match=r"w0 \(weights\); .* move them away") as refused:
        newest([f"w{number}" for number in range(1000)], check)
    assert len(str(refused.value)) < 2500


def places(*starts: int) -> list[bytes]:
    return [json.dumps([at, f"step {at} on n{rank}"]).encode() for rank, at in enumerate(starts)]


def test_ranks_are_named_by_where_they_begin() -> None:
    assert _difference(places(7, 7, 7)) == b""
    text = _difference(places(10, 10, 0, 10, 0)).decode()
    assert text == "ranks 0-1,3 at step 10 on n0; ranks 2,4 at step 0 on n2"
    assert len(_difference(places(*range(1000)))) < 2500


def test_a_process_that_is_alone_begins_anywhere() -> None:
    begin_alike(10, "step 10")


@pytest.mark.e2e
@pytest.mark.torch
def test_all_ranks_are_told_that_they_differ_and_who_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_ports(1)))
    program = Path(__file__).with_name("start_program.py")
    for rank, one in enumerate(gloo_ranks.run(program, 3, tmp_path)):
        alike, differ, *late = one["said"]
        assert alike == ""
        assert "rank 0 at step 10 of /node-0" in differ
        assert "ranks 1-2 at step 0 of /node-1" in differ
        assert "one folder" in differ
        assert bool(late) == (rank != 0)
        assert all("rank 0 of 3 did not answer within 1 s" in text for text in late)
