from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import storage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def run(path: Path, seen: dict[str, Any] | None = None) -> Finding | None:
    (check,) = storage.checks(Settings(storage_paths=(str(path),)))
    assert check.subject == str(path)
    return check.run({} if seen is None else seen)


def test_a_check_per_path() -> None:
    found = storage.checks(Settings(storage_paths=("/a", "/b", "/a")))
    assert [check.subject for check in found] == ["/a", "/b"]


def test_files_and_directories_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    os.mkfifo(tmp_path / "pipe")
    assert run(tmp_path) is None
    assert run(tmp_path / "file") is None
    assert run(tmp_path / "pipe") is None  # without waiting for a writer


def test_what_is_not_there(tmp_path: Path) -> None:
    assert run(tmp_path / "none") == Finding("No such file or directory")
    (tmp_path / "file").write_text("data")
    assert run(tmp_path / "file" / "below") == Finding("Not a directory")
    (tmp_path / "loop").symlink_to("loop")
    found = run(tmp_path / "loop")
    assert found is not None
    assert found.failed


def test_nothing_is_written(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    assert run(tmp_path) is None
    assert tmp_path.stat().st_mtime_ns == before
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_becomes_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    writable = os.statvfs(tmp_path)
    fields = [*writable[:8], writable.f_flag | os.ST_RDONLY, writable.f_namemax]
    read_only = os.statvfs_result(fields)
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    assert run(tmp_path, seen) is None  # as it was mounted
    monkeypatch.setattr(os, "statvfs", lambda _: writable)
    assert run(tmp_path, seen) is None
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    found = run(tmp_path, seen)
    assert found is not None
    assert found.failed
    assert "read-only" in found.text
