"""``undaunted top`` over real directories, without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal import sample
from undaunted.cli.top import main
from undaunted.journal.lines import encode
from undaunted.top.model import Job
from undaunted.top.notes import Note
from undaunted.top.ranks import Rank

CONTENT = b"".join(map(encode, sample.RUN))
PAGE = Path(__file__).parents[2] / "docs" / "top.md"


def make_run(directory: Path, content: bytes = CONTENT) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "journal-n0.jsonl").write_bytes(content)
    return directory


def test_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make_run(tmp_path / "r")), "--once"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("demo: finished, exit code 0")
    assert "restarts 2 of 3   goodput 45 %   iteration 107   2 ranks   time 9.0 s" in out
    assert "finished: every rank exited with 0" in out
    assert (err, "\x1b" in out) == ("", False)


def test_an_output_that_is_no_terminal_gets_a_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(make_run(tmp_path / "r"))]) == 0
    assert capsys.readouterr().out.startswith("demo: finished")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make_run(tmp_path / "r", CONTENT + b"torn\n")), "--json"]) == 0
    job = json.loads(capsys.readouterr().out)
    assert (job["schema"], job["run_id"], job["round"]) == (1, "demo", 2)
    assert [rank["phase"] for rank in job["ranks"]] == ["exit 0", "exit 0"]
    assert job["problems"] == ["1 line of the journals could not be read and was skipped"]


def test_every_key_of_the_json_is_documented() -> None:
    text = PAGE.read_text()
    keys = {*Job.__struct_fields__, *Rank.__struct_fields__, *Note.__struct_fields__}
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_the_newest_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    assert "no run under ./undaunted-runs" in capsys.readouterr().err
    make_run(tmp_path / "undaunted-runs" / "a")
    assert main([]) == 0


def test_what_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for name, text in (("missing", "does not exist"), ("empty", "holds no journal")):
        assert main([str(tmp_path / name)]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\xff\x00garbage" * 1000, CONTENT[:150]])
def test_damaged_journals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    assert main([str(make_run(tmp_path / "r", content))]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "nan", "x", "1e9"])
def test_intervals(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--interval", text]) == 2
    assert "is not a number of seconds from 0.1 to 3600" in capsys.readouterr().err


def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    try:
        run = make_run(tmp_path / "r")
        command = [sys.executable, "-m", "undaunted.cli.main", "top", str(run)]
        done = subprocess.run(command, stdout=writable, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(writable)
    assert (done.returncode, done.stderr) == (0, b"")
