"""Which run is the newest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.journal.newest import newest_run

if TYPE_CHECKING:
    from pathlib import Path


def make_run(directory: Path, written_s: int, node: str = "n0") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    journal = directory / f"journal-{node}.jsonl"
    journal.write_text("")
    os.utime(journal, (written_s, written_s))
    return directory


def test_the_journal_written_last_decides(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 5)
    made = make_run(tmp_path / "b", 1)
    make_run(tmp_path / "b", 9, node="n1")
    make_run(tmp_path / "c", 7)
    assert newest_run(tmp_path) == made


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    made = make_run(tmp_path / "a", 5)
    (tmp_path / "link").symlink_to(make_run(tmp_path / "elsewhere" / "b", 9))
    assert newest_run(tmp_path) == made


def test_none(tmp_path: Path) -> None:
    assert newest_run(tmp_path) is None
    assert newest_run(tmp_path / "missing") is None
