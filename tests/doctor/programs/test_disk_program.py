from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from undaunted.doctor.programs import disk_program
from undaunted.doctor.programs.disk_program import write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CHUNK = 4 * 1024 * 1024


def test_all_of_it(tmp_path: Path) -> None:
    found = write(str(tmp_path), CHUNK, 60.0)
    assert found["written"] == CHUNK
    assert found["problem"] == ""
    assert list(tmp_path.iterdir()) == []


def test_time_ends_it(tmp_path: Path) -> None:
    assert write(str(tmp_path), CHUNK, 0.0)["written"] == 0


def test_a_file_system_without_nameless_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuses(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuses)
    assert write(str(tmp_path), CHUNK, 60.0)["written"] == CHUNK
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    found = write(str(tmp_path), CHUNK, 60.0)
    monkeypatch.undo()
    assert found == {"written": 0, "problem": "No space left on device"}
    assert list(tmp_path.iterdir()) == []


def test_no_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_program, "try_direct", lambda fd: False)
    assert write(str(tmp_path), CHUNK, 60.0)["direct"] is False


def test_no_such_directory(tmp_path: Path) -> None:
    assert write(str(tmp_path / "none"), CHUNK, 60.0) == {"problem": "No such file or directory"}
