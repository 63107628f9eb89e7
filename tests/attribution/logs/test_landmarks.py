"""What a log says of itself: rounds, other logs, dumps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.attribution.logs import landmarks as module
from undaunted.attribution.logs.landmarks import MOST_ROUNDS, Landmarks, landmarks

if TYPE_CHECKING:
    from pathlib import Path


def found(path: Path, content: str | bytes) -> Landmarks:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return landmarks(fd)
    finally:
        os.close(fd)


def event(cycle: int, name: str = "rendezvous_started") -> str:
    return f"[INFO] profiling.py:120:   - Cycle: {cycle} Event: {name} Node: n0 Rank: 0 Time: x\n"


@pytest.fixture(params=[1 << 20, 200])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("_chunks")
def test_rounds_begin_where_ranks_are_started(tmp_path: Path) -> None:
    first = "set-up\n" + event(0) + "step 1\n" + event(1, "failure_detected") + "late words\n"
    second = event(1) + event(1, "worker_start_completed") + event(0, "x") + "step 1\n"
    third = event(2) + "cut off"
    rounds = found(tmp_path / "a", first + second + third).rounds
    contents = [(first + second + third)[one.begin : one.end] for one in rounds]
    assert contents == [first, second, third]
    assert [one.lines for one in rounds] == [0, 5, 9]


def test_a_log_of_one_round_is_one(tmp_path: Path) -> None:
    for content in ("", "step 1\nstep 2", event(3) + "step 1\n" + event(3)):
        ((begin, end, lines),) = found(tmp_path / "a", content).rounds
        assert (begin, end, lines) == (0, len(content), 0)


def test_of_many_rounds_the_last_are_told_apart(tmp_path: Path) -> None:
    content = "".join(map(event, range(100)))
    rounds = found(tmp_path / "a", content).rounds
    assert len(rounds) == MOST_ROUNDS
    assert rounds[0].begin == 0
    assert content[rounds[-1].begin :] == event(99)
    assert rounds[1].begin == rounds[0].end == content.index(event(100 - MOST_ROUNDS + 1))


@pytest.mark.usefixtures("_chunks")
def test_the_last_start_says_where_ranks_write(tmp_path: Path) -> None:
    block = "<< START PATHS >>\nJOB=17\n{}\n<< END PATHS >>\n"
    content = block.format("LOGS_DIR=/logs/1") + "x" * 99 + "\n" + block.format("LOGS_DIR=/logs/2 ")
    seen = found(tmp_path / "a", content)
    assert (seen.starts, seen.logs_dir) == (2, "/logs/2")
    seen = found(tmp_path / "a", block.format('0: export LOGS_DIR="/logs/a b"'))
    assert (seen.starts, seen.logs_dir) == (1, "/logs/a b")
    for other in (
        "LOGS_DIR=/logs\n",
        block.format("LOGS_DIR=logs"),
        block.format("MY_LOGS_DIR=/x"),
    ):
        assert found(tmp_path / "a", other).logs_dir == ""


def test_where_dumps_are(tmp_path: Path) -> None:
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        for line in (
            f"{name}=/d/_dump_",
            f'declare -x {name}="/d/_dump_"',
            f"A=1 {name}=/d/_dump_ B",
        ):
            assert found(tmp_path / "a", f"words\n{line}\n").dumps == "/d/_dump_"
    assert found(tmp_path / "a", b"TORCH_FR_DUMP_TEMP_FILE=/d\xff/x\n").dumps == "/d\udcff/x"
    assert found(tmp_path / "a", "TORCH_FR_DUMP_TEMP_FILE=here\n").dumps == ""
