"""Where a core file is, by the kernel's settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.agent import core_file
from undaunted.fault_tolerance.agent.core_file import find, paths_of

if TYPE_CHECKING:
    from pathlib import Path


def settings(tmp_path: Path, pattern: str, uses_pid: str = "0") -> Path:
    place = tmp_path / "kernel"
    place.mkdir()
    (place / "core_pattern").write_text(f"{pattern}\n")
    (place / "core_uses_pid").write_text(f"{uses_pid}\n")
    return place


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "paths"),
    [
        ("core", False, "core"),
        ("core", True, "core.7"),
        ("core.%p", True, "core.7"),
        ("/cores/%e.%P.%t.core", False, "/cores/*.7.*.core"),
        ("a[b]%%%u", False, "a[[]b]%*"),
        ("core%", False, "core%"),
    ],
)
def test_patterns(pattern: str, uses_pid: bool, paths: str) -> None:
    assert paths_of(pattern, 7, uses_pid=uses_pid) == paths


def test_the_newest_file_that_fits_and_is_not_older_than_the_process(tmp_path: Path) -> None:
    kernel = settings(tmp_path, "core.%e.%p")
    for name, at in (("core.a.7", 100), ("core.b.7", 300), ("core.c.7", 200), ("core.d.77", 400)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    assert find(7, str(tmp_path), 150, kernel) == str(tmp_path / "core.b.7")
    assert find(7, str(tmp_path), 301, kernel) == ""
    assert find(7, str(tmp_path / "missing"), 0, kernel) == ""


def test_an_absolute_pattern_is_no_matter_of_the_current_directory(tmp_path: Path) -> None:
    kernel = settings(tmp_path, f"{tmp_path}/%p.core")
    (tmp_path / "7.core").touch()
    assert find(7, "/", 0, kernel) == str(tmp_path / "7.core")


def test_a_program_that_takes_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = settings(tmp_path, "|/usr/share/apport/apport -p%p -s%s")
    assert find(7, "/", 0, kernel) == "taken by /usr/share/apport/apport"
    (kernel / "core_pattern").write_text("|/usr/lib/systemd/systemd-coredump %P %u\n")
    monkeypatch.setattr(core_file, "_SYSTEMD_FILES", f"{tmp_path}/core.*.{{pid}}.*")
    assert find(7, "/", 0, kernel) == "coredumpctl info 7"
    made = tmp_path / "core.python.0.ab.7.9.zst"
    made.touch()
    assert find(7, "/", 0, kernel) == f"coredumpctl info 7 ({made})"


def test_settings_that_cannot_be_read(tmp_path: Path) -> None:
    assert find(7, str(tmp_path), 0, tmp_path / "none") == ""
