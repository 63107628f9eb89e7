"""The newest checkpoint that is whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from undaunted.integrations.lightning.resuming import last_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, age: int) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    torch.save({"step": age, "weights": torch.ones(100)}, path)
    for each in (path, path.parent):
        os.utime(each, (1000 - age, 1000 - age))


def test_of_no_folder_and_of_an_empty_one_there_is_none(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "missing") is None
    assert last_checkpoint(tmp_path) is None


def test_the_newest_counts_whatever_its_name(tmp_path: Path) -> None:
    write(tmp_path / "a.ckpt", 1)
    write(tmp_path / "b.ckpt", 2)
    (tmp_path / "notes.txt").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "a.ckpt")


def test_one_that_is_cut_short_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "old.ckpt", 2)
    whole = (tmp_path / "old.ckpt").read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / "new.ckpt").write_bytes(whole[:size])
        assert last_checkpoint(tmp_path) == str(tmp_path / "old.ckpt")
    (tmp_path / "new.ckpt").write_bytes(whole)
    assert last_checkpoint(tmp_path) == str(tmp_path / "new.ckpt")


def test_folders_of_shards_are_whole_with_what_is_written_last(tmp_path: Path) -> None:
    write(tmp_path / "old.ckpt" / "meta.pt", 2)
    (tmp_path / "new.ckpt").mkdir()
    (tmp_path / "new.ckpt" / "__0_0.distcp").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "old.ckpt")
