"""Records: written and read back, whatever else is in the directory."""

from __future__ import annotations

import os
import resource
import stat
from typing import TYPE_CHECKING

import pytest

from undaunted.digests.record import FORWARD, STEP, Record, Recorder, encode, file_of, read_records

if TYPE_CHECKING:
    from pathlib import Path

FIRST = Record(0, 3, STEP, 0, {"parameters": "00ff00ff00ff00ff", "rng": "1122334455667788"})
SECOND = Record(1, 4, FORWARD, 1, {"data": "0" * 16}, counted=True, finite="no")


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    file_of(tmp_path, 10).write_bytes(encode(SECOND))
    file_of(tmp_path, 2).write_bytes(encode(FIRST) + encode(SECOND))
    records = read_records(tmp_path)
    assert records.by_rank == {2: [FIRST, SECOND], 10: [SECOND]}
    assert list(records.by_rank) == [2, 10]
    assert records.unreadable == 0


def test_a_line_is_one_line_and_tells_defaults_by_absence() -> None:
    line = encode(FIRST)
    assert line.count(b"\n") == 1
    assert b"counted" not in line
    assert b"finite" not in line


def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    half = encode(FIRST)[:20]
    wrong = b'{"round": "x"}\n\xff\xfe\n'
    file_of(tmp_path, 0).write_bytes(encode(FIRST) + wrong + encode(SECOND) + half)
    records = read_records(tmp_path)
    assert records.by_rank == {0: [FIRST, SECOND]}
    assert records.unreadable == 3


def test_keys_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    line = encode(FIRST).replace(b"{", b'{"later": 1, ', 1)
    file_of(tmp_path, 0).write_bytes(line)
    assert read_records(tmp_path).by_rank == {0: [FIRST]}


def test_other_files_and_no_directory_hold_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank-x.jsonl").write_text("{}")
    (tmp_path / "notes.txt").write_text("rank")
    assert read_records(tmp_path).by_rank == {}
    assert read_records(tmp_path / "absent").by_rank == {}


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
