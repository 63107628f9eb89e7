from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from undaunted.coordinator import protocol as p
from undaunted.coordinator.service import ledger_file

HERE = "node0:29400"


def kept(directory: Path, ledger: p.Ledger, endpoint: str = HERE) -> ledger_file.LedgerFile:
    file = ledger_file.LedgerFile(str(directory), endpoint, print)
    file.keep(ledger)
    return file


def test_the_newest_is_read_again(tmp_path: Path) -> None:
    file = kept(tmp_path, p.Ledger(run_id="job", version=1))
    file.keep(p.Ledger(run_id="job", version=2))
    file.close()
    assert ledger_file.read(str(tmp_path), HERE) == p.Ledger(run_id="job", version=2)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_its_name_survives_a_power_failure_as_well(tmp_path: Path, monkeypatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    kept(tmp_path, p.Ledger(run_id="job", version=1)).close()
    assert synced[-1] == str(tmp_path)


def test_a_job_that_meets_elsewhere_does_not_see_it(tmp_path: Path) -> None:
    kept(tmp_path, p.Ledger(run_id="none", version=1)).close()
    kept(tmp_path, p.Ledger(run_id="none", version=7), "node0:29500").close()
    found = ledger_file.read(str(tmp_path), HERE)
    assert found is not None
    assert found.version == 1
    assert ledger_file.read(str(tmp_path), "node1:29400") is None


def test_nothing_is_left_of_a_job_that_is_over(tmp_path: Path) -> None:
    kept(tmp_path, p.Ledger(run_id="job")).close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_named_once(tmp_path: Path) -> None:
    said: list[str] = []
    file = ledger_file.LedgerFile(str(tmp_path / "missing"), HERE, said.append)
    for version in (1, 2):
        written = threading.Event()
        file.keep(p.Ledger(run_id="job", version=version), lambda _, each=written: each.set())
        assert written.wait(60)
    file.close()
    (line,) = said
    assert str(tmp_path / "missing" / ledger_file.name(HERE)) in line
    assert "No such file or directory" in line


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / ledger_file.name(HERE)).write_text("{}")
    with pytest.raises(ValueError, match=r"is no ledger .*; remove it to begin anew"):
        ledger_file.read(str(tmp_path), HERE)
