from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.doctor import probes as disks
from undaunted.doctor.probes import Children

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.doctor.facts import Trial


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "BYTES", 4 * 1024 * 1024)


def tried(path: Path, deadline_s: float = 60.0) -> Trial:
    with Children() as children:
        return disks.of_disk(children, str(path), "checkpoints", deadline_s)


def test_a_directory(tmp_path: Path) -> None:
    found = tried(tmp_path)
    assert found.problem == ""
    assert found.written == 4 * 1024 * 1024
    assert found.seconds > 0
    assert found.file_system.free
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_not_there_yet(tmp_path: Path) -> None:
    found = tried(tmp_path / "run" / "checkpoints")
    assert found.problem == ""
    assert found.written
    assert list(tmp_path.iterdir()) == []


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert tried(tmp_path / "file").problem == f"{tmp_path / 'file'} is no directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert tried(tmp_path).problem == "Permission denied"


def test_a_place_that_nobody_can_write() -> None:
    assert tried(disks.Path("/proc")).problem


def test_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "hangs.py"
    program.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(disks, "DISK_PROGRAM", program)
    assert tried(tmp_path, 0.2).problem == "no answer within 200 ms"
