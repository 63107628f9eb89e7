from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from undaunted.checkpointing.files import durable

if TYPE_CHECKING:
    from pathlib import Path


def test_folders_are_private(tmp_path: Path) -> None:
    durable.make_folder(str(tmp_path / "a" / "b"))
    durable.make_folder(str(tmp_path / "a" / "b"))
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(OSError, match="/a"):
        durable.make_folder(str(tmp_path / "a" / "b"))


def test_files_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    path = str(tmp_path / "x")
    durable.write_file(path, b"0123456789" * 3)
    durable.write_file(path, b"0123456789" * 2)
    assert durable.read_file(path, 20) == b"0123456789" * 2


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="link"):
        durable.write_file(str(tmp_path / "link"), b"")
    (tmp_path / "target").write_text("x")
    with pytest.raises(OSError, match="link"):
        durable.read_file(str(tmp_path / "link"), 10)


def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_bytes(b"x" * 11)
    for name in ("fifo", "big"):
        with pytest.raises(OSError, match=name):
            durable.read_file(str(tmp_path / name), 10)


def test_errors_of_descriptors_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="/x") as caught:
        durable.write_file(str(tmp_path / "x"), b"")
    assert caught.value.errno == 5


def test_folders_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems answer so; there is nothing else to be done."""

    def fail(fd: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    durable.sync_folder(str(tmp_path))


def test_a_tree_that_another_removes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "file").write_text("")
    rmdir = os.rmdir

    def late(path: str, **where: int) -> None:
        rmdir(path, **where)
        if path == "b":
            raise FileNotFoundError(2, "gone", path)

    monkeypatch.setattr(os, "rmdir", late)
    durable.remove_tree(str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists()
    durable.remove_tree(str(tmp_path / "tree"))
