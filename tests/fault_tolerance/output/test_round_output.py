"""Everything that is made of the output of one round, together."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.fault_tolerance.output.following import DEADLINE_S, append, wait_for
from undaunted.fault_tolerance.output import follower, log_file, round_output
from undaunted.fault_tolerance.output.destinations import Destination, RankOutput
from undaunted.fault_tolerance.output.round_output import RoundOutput, rank_prefix
from undaunted.fault_tolerance.run_config import TO_BOTH, RunConfig

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.fault_tolerance.output.job_logs import OpenLog


def made(tmp_path: Path, log: str = "", open_log: OpenLog | None = None) -> RoundOutput:
    config = RunConfig(
        run_id="r", node="n", nproc_per_node=2, max_restarts=0, kind="script", target="t", args=[],
        cwd="/", run_dir="/run", log_dir=str(tmp_path), stdout=[TO_BOTH] * 2, stderr=[TO_BOTH] * 2,
        applog_prefix=log,
    )  # fmt: skip
    files = [
        RankOutput(*(Destination(str(path), shown=True) for path in paths(tmp_path, rank)))
        for rank in (0, 1)
    ]
    options: dict[str, Any] = {} if open_log is None else {"open_log": open_log}
    return RoundOutput(config, 1, [2, 3], 4, files, **options)


def paths(tmp_path: Path, local_rank: int) -> list[Path]:
    place = tmp_path / "attempt_1" / str(local_rank)
    return [place / "stdout.log", place / "stderr.log"]


def test_the_console_and_the_log_of_the_round_have_every_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = made(tmp_path, str(tmp_path / "train"))
    assert output.start() == []
    for rank in (0, 1):
        for name, path in zip(("out", "err"), paths(tmp_path, rank), strict=True):
            append(path, f"{name} of {rank}\n".encode())
    output.request_close()
    assert output.close() == []
    lines = (tmp_path / "train_cycle1.log").read_text().splitlines()
    assert sorted(lines) == ["2: err of 0", "2: out of 0", "3: err of 1", "3: out of 1"]
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[default2]:out of 0", "[default3]:out of 1"]
    assert sorted(err.splitlines()) == ["[default2]:err of 0", "[default3]:err of 1"]


def test_without_anything_asked_for_nothing_is_made(tmp_path: Path) -> None:
    config = RunConfig(
        run_id="r", node="n", nproc_per_node=2, max_restarts=0, kind="script", target="t", args=[],
        cwd="/", run_dir="/run", log_dir=str(tmp_path), stdout=[0] * 2, stderr=[0] * 2,
    )  # fmt: skip
    output = RoundOutput(config, 1, [0, 1], 2, [RankOutput(Destination(), Destination())] * 2)
    assert output.start() == []
    assert output.close() == []
    assert os.listdir(tmp_path) == []


def test_problems_are_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = made(tmp_path, str(tmp_path / "file" / "log"))
    (problem,) = output.start()
    assert str(tmp_path / "file" / "log") in problem
    assert output.close() == []


def test_a_log_that_does_not_open_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The console works meanwhile."""
    monkeypatch.setattr(round_output, "_OPEN_S", 0.01)
    asked, answers = threading.Event(), threading.Event()

    def hangs(*_: object) -> Any:
        asked.set()
        answers.wait(DEADLINE_S)
        raise OSError("at last")

    output = made(tmp_path, str(tmp_path / "log"), hangs)
    (line,) = output.start()
    assert str(tmp_path) in line
    assert asked.wait(DEADLINE_S)
    append(paths(tmp_path, 0)[0], b"shown\n")
    wait_for(lambda: "shown" in capfd.readouterr().out)
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "undaunted-deadline":
            thread.join(DEADLINE_S)
    output.request_close()
    output.close()


def test_a_disk_that_hangs_holds_up_nothing_but_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follower, "_PATIENCE_S", 0.1)
    asked, answers = threading.Event(), threading.Event()
    writev = os.writev

    def hangs(fd: int, pieces: list[bytes]) -> int:
        asked.set()
        assert answers.wait(DEADLINE_S)
        return writev(fd, pieces)

    monkeypatch.setattr(log_file.os, "writev", hangs)
    output = made(tmp_path, str(tmp_path / "log"))
    assert output.start() == []
    append(paths(tmp_path, 0)[0], b"first\n")
    assert asked.wait(DEADLINE_S)
    append(paths(tmp_path, 1)[0], b"second\n")
    wait_for(lambda: "second" in capfd.readouterr().out)
    (problem,) = output.close()
    assert str(tmp_path / "log_cycle1.log") in problem
    assert str(tmp_path / "attempt_1") in problem
    answers.set()
    assert output.close() == []


def test_streams_that_are_one_file_have_one_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long line is written in pieces: no line of the other stream comes between."""
    one = os.fstat(1)
    monkeypatch.setattr(round_output.os, "fstat", lambda _: one)
    output = made(tmp_path)
    before = threading.active_count()
    assert output.start() == []
    assert threading.active_count() == before + 1
    assert output.close() == []


@pytest.mark.parametrize(
    ("rank", "world_size", "prefix"),
    [(0, 1, "0: "), (9, 10, "9: "), (9, 11, " 9: "), (10, 11, "10: ")],
)
def test_prefixes_of_a_job_have_one_width(rank: int, world_size: int, prefix: str) -> None:
    assert rank_prefix(rank, world_size) == prefix
