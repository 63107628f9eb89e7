"""The directory of the ranks' errors is removed, whoever lives longer."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.agent import error_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_agent_removes_its_own(tmp_path: Path) -> None:
    directory = error_files.make()
    assert directory.path.startswith(str(tmp_path))
    error_files.remove(directory)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_agent_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    killed = error_files.make()
    os.close(killed.lock)
    (tmp_path / "undaunted-errors-1-x").mkdir()
    (tmp_path / f"undaunted-errors-{os.getpid()}-link").symlink_to("undaunted-errors-1-x")
    error_files.remove_of(os.getpid())
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["undaunted-errors-1-x", f"undaunted-errors-{os.getpid()}-link"]


def test_a_full_disk_leaves_the_job_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    assert error_files.make() == error_files.ErrorDirectory()
    error_files.remove(error_files.ErrorDirectory())


def test_the_next_launch_removes_what_killed_ones_have_left_and_nothing_else(
    tmp_path: Path,
) -> None:
    lives = error_files.make()
    left = tmp_path / f"undaunted-errors-{os.getpid()}-left"  # its pid has been used again
    for path in (left, tmp_path / "undaunted-errors-1-young", tmp_path / "other"):
        path.mkdir()
        (path / "round0-rank0.json").touch()
    (tmp_path / "undaunted-errors-1-link").symlink_to("other")
    for path in tmp_path.iterdir():
        if "young" not in path.name:
            os.utime(path, (1, 1), follow_symlinks=False)
    expected = {path.name for path in tmp_path.iterdir()} - {left.name}
    mine = error_files.make()
    found = {path.name for path in tmp_path.iterdir()} - {os.path.basename(mine.path)}  # noqa: PTH119
    assert found == expected
    for directory in (lives, mine):
        error_files.remove(directory)
