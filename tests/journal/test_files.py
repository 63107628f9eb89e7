from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.journal.faulty import FaultyFiles
from undaunted.journal.files import replace_text, write_all

if TYPE_CHECKING:
    from pathlib import Path


def test_text_is_written_with_its_private_directories(tmp_path: Path) -> None:
    path = tmp_path / "errors" / "round_0" / "rank_1.json"
    replace_text(os, str(path), "caf\u00e9 \udcff")
    assert path.read_bytes() == "caf\u00e9 \\udcff".encode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("fail_at", range(6))
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, fail_at: int) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    fs = FaultyFiles()
    fs.fail_at = fail_at
    try:
        replace_text(fs, str(path), "new")
        expected = "new"
    except OSError:
        expected = "old"
    assert path.read_text() == expected
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_at_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "a").symlink_to(tmp_path / "victim")
    replace_text(os, str(tmp_path / "a"), "new")
    assert (tmp_path / "victim").read_text() == "untouched"
    assert (tmp_path / "a").read_text() == "new"


def test_a_file_that_takes_nothing_is_an_error() -> None:
    class Nothing(FaultyFiles):
        def _call(self, name: str, *args: object) -> object:
            return 0

    done, error = write_all(Nothing(), 1, b"abc")
    assert done == 0
    assert error is not None
