"""Records are appended whole, and a half one does not spoil the next."""

from __future__ import annotations

import os
import resource
import stat
from typing import TYPE_CHECKING

import pytest

from undaunted.digests.record import STEP, Record, file_of, read_records
from undaunted.digests.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

ONE = Record(0, 1, STEP, 0, {"rng": "0" * 16})


def test_records_are_appended_to_a_private_file(tmp_path: Path) -> None:
    Recorder(tmp_path, 2).write(ONE)
    Recorder(tmp_path, 2).write(ONE)
    assert read_records(tmp_path).by_rank == {2: [ONE, ONE]}
    assert stat.S_IMODE(file_of(tmp_path, 2).stat().st_mode) == 0o600


def test_a_full_disk_is_an_error_and_spoils_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    writer = Recorder(tmp_path, 0)
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
    with pytest.raises(OSError, match="only 9 of"):
        writer.write(ONE)
    monkeypatch.undo()
    writer.write(ONE)
    writer.write(ONE)
    records = read_records(tmp_path)
    assert records.by_rank == {0: [ONE, ONE]}
    assert records.unreadable == 1


def test_a_limit_of_file_size_is_not_for_records(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        Recorder(tmp_path, 0).write(ONE)
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (10, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_records(tmp_path).by_rank == {0: [ONE]}


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Recorder(tmp_path / "absent", 0).write(ONE)
