"""The newest checkpoint that training can go on from."""

from __future__ import annotations

import logging
import os
import uuid
from typing import TYPE_CHECKING

import pytest
import torch
from fsspec.core import url_to_fs

from undaunted.integrations.lightning.checkpoints import last_checkpoint, refuse_no_folder

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, age: int, *, weights_only: bool = False) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    state = {"epoch": 3, "global_step": 1000 - age, "state_dict": {"weights": torch.ones(100)}}
    torch.save(state if weights_only else {**state, "lr_schedulers": []}, path)
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


@pytest.mark.parametrize("step", [0, 1, 200, 300, 70_000, 2**31, 2**40])
def test_the_highest_step_counts_whatever_the_times_are(tmp_path: Path, step: int) -> None:
    for name, at, time in (("a", step, 9), ("b", step + 4, 1), ("c", max(0, step - 4), 10)):
        torch.save({"global_step": at, "lr_schedulers": []}, tmp_path / f"{name}.ckpt")
        os.utime(tmp_path / f"{name}.ckpt", (time, time))
    assert last_checkpoint(tmp_path) == str(tmp_path / "b.ckpt")


def test_of_one_step_the_last_written_counts(tmp_path: Path) -> None:
    for name, time in (("a", 9), ("b", 1)):
        torch.save({"global_step": 4, "lr_schedulers": []}, tmp_path / f"{name}.ckpt")
        os.utime(tmp_path / f"{name}.ckpt", (time, time))
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


def test_one_with_the_weights_only_is_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "old.ckpt", 2)
    write(tmp_path / "new.ckpt", 1, weights_only=True)
    with caplog.at_level(logging.WARNING, "undaunted"):
        assert last_checkpoint(tmp_path) == str(tmp_path / "old.ckpt")
    (line,) = caplog.messages
    assert "new.ckpt" in line
    assert "save_weights_only" in line


def test_training_does_not_begin_anew_beside_checkpoints_of_no_use(tmp_path: Path) -> None:
    write(tmp_path / "a.ckpt", 1, weights_only=True)
    (tmp_path / "b.ckpt").mkdir()
    with pytest.raises(ValueError, match="move them away") as refused:
        last_checkpoint(tmp_path)
    assert "a.ckpt (has the weights only" in str(refused.value)
    assert "b.ckpt (without meta.pt" in str(refused.value)


def test_folders_are_urls_as_well() -> None:
    folder = f"memory://{uuid.uuid4()}/checkpoints"
    assert last_checkpoint(folder) is None
    files, root = url_to_fs(folder)
    for name in ("old", "new", "torn"):
        with files.open(f"{root}/{name}.ckpt", "wb") as file:
            torch.save({"lr_schedulers": []}, file)
    files.pipe(f"{root}/torn.ckpt", b"PK")
    assert last_checkpoint(folder) == f"{folder}/new.ckpt"
    files.rm(root, recursive=True)


def test_a_file_url(tmp_path: Path) -> None:
    write(tmp_path / "a.ckpt", 1)
    assert last_checkpoint(f"file://{tmp_path}") == f"file://{tmp_path}/a.ckpt"


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.ckpt", 1)
    with pytest.raises(ValueError, match="is a file"):
        last_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="lost a slash"):
        last_checkpoint(type(tmp_path)("s3://bucket/checkpoints"))
    with pytest.raises(ValueError, match="no-such"):
        last_checkpoint("no-such://bucket/checkpoints")


@pytest.mark.parametrize("folder", [123, "", b"checkpoints", 1.5, ["checkpoints"], "no-such://x"])
def test_a_stop_is_not_to_be_saved_in_what_is_no_folder(folder: object) -> None:
    with pytest.raises(ValueError, match=r"folder is|no-such"):
        refuse_no_folder(folder)


def test_a_stop_is_not_to_be_saved_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="which is a file"):
        refuse_no_folder(tmp_path / "file")
    refuse_no_folder(tmp_path)
    refuse_no_folder(str(tmp_path / "to be made"))
    refuse_no_folder("memory://checkpoints")
