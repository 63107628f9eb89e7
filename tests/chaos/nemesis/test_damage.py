"""Damage to the newest checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.nemesis.damage import (
    FLIP,
    TRUNCATE,
    damage_newest,
    damage_of,
    newest_data,
)

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, size: int, at_s: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a" * size)
    os.utime(path, (at_s, at_s))
    return path


def fault_with(kind: str) -> str:
    return next(name for name in map(str, range(100)) if damage_of(7, name) == kind)


def test_newest_of_files_alike(tmp_path: Path) -> None:
    write(tmp_path / "step-10.pt", 1010, 10)
    newest = write(tmp_path / "step-20.pt", 1000, 20)

    assert newest_data(tmp_path) == newest


def test_a_manifest_written_last_is_not_the_data(tmp_path: Path) -> None:
    write(tmp_path / "step-10/rank0", 5000, 10)
    data = write(tmp_path / "step-20/rank0", 1000, 20)
    write(tmp_path / "step-20/manifest.json", 20, 21)

    assert newest_data(tmp_path) == data


@pytest.mark.parametrize("name", [".step-20.pt", "step-20.tmp", ".wip/rank0", "step-20.new"])
def test_what_is_not_finished_does_not_count(tmp_path: Path, name: str) -> None:
    whole = write(tmp_path / "step-10.pt", 1000, 10)
    write(tmp_path / name, 1000, 20)

    assert newest_data(tmp_path) == whole


def test_links_and_empty_files_do_not_count(tmp_path: Path) -> None:
    whole = write(tmp_path / "step-10.pt", 1000, 10)
    write(tmp_path / "empty", 0, 20)
    (tmp_path / "latest").symlink_to(whole)

    assert newest_data(tmp_path) == whole


def test_nothing_there(tmp_path: Path) -> None:
    assert newest_data(tmp_path) is None
    assert damage_newest(tmp_path, 7, "f1") == ""
    assert newest_data(tmp_path / "missing") is None


def test_one_byte_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "step-10.pt", 1001, 10)

    assert damage_newest(tmp_path, 7, fault_with(FLIP)) == "step-10.pt: byte 500 changed"

    content = path.read_bytes()
    assert content == b"a" * 500 + bytes([ord("a") ^ 0xFF]) + b"a" * 500
    assert path.stat().st_mtime == 10


def test_second_half_goes(tmp_path: Path) -> None:
    path = write(tmp_path / "step-10.pt", 1001, 10)

    assert damage_newest(tmp_path, 7, fault_with(TRUNCATE)) == "step-10.pt: second half cut off"

    assert path.read_bytes() == b"a" * 500
