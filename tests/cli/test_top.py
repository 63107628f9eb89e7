"""``undaunted top`` over real directories, without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.journal import sample
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


def test_json(tmp_path: Path, command: Any) -> None:
    job = json.loads(command("top", make_run(tmp_path / "r", CONTENT + b"torn\n"), "--json"))
    assert (job["schema"], job["run_id"], job["round"]) == (1, "demo", 2)
    assert [rank["phase"] for rank in job["ranks"]] == ["exit 0", "exit 0"]
    assert job["problems"] == ["1 line of the journals could not be read and was skipped"]


def test_every_key_of_the_json_is_documented() -> None:
    text = PAGE.read_text()
    keys = {*Job.__struct_fields__, *Rank.__struct_fields__, *Note.__struct_fields__}
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_the_newest_run(tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "undaunted-runs" / "a")
    assert command("top")


@pytest.mark.parametrize("content", [b"", b"\xff\x00garbage" * 1000, CONTENT[:150]])
def test_damaged_journals(tmp_path: Path, command: Any, content: bytes) -> None:
    assert command("top", make_run(tmp_path / "r", content))


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
