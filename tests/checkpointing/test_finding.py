from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.checkpointing.files.conformance import BLOCK, save
from undaunted.agreement.agreement import Alone
from undaunted.checkpointing.errors import AGREED
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.finding import Found, find_together


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(str(tmp_path), block_bytes=BLOCK)


def search(storage: FolderStorage, wanted: int | None = None) -> Found:
    return find_together(storage, Alone("s1", AGREED), "search", 1.0, wanted)


def test_nothing_is_found_and_nothing_said_where_nothing_is(
    storage: FolderStorage, caplog: pytest.LogCaptureFixture
) -> None:
    assert search(storage) == Found(None, {})
    assert caplog.text == ""


def test_a_folder_that_is_called_like_a_checkpoint_is_named(
    storage: FolderStorage, caplog: pytest.LogCaptureFixture
) -> None:
    save(storage, 100)
    empty = Path(storage.place) / "step-00000200"
    empty.mkdir()
    found = search(storage)
    assert found.manifest is not None
    assert found.manifest.step == 100
    assert found.skipped == {}
    assert f"step 200 cannot be used: {empty} has no undaunted.json" in caplog.text


def test_nothing_is_said_of_one_that_is_deleted_meanwhile(
    storage: FolderStorage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, step in enumerate((100, 200)):
        save(storage, step, number=number)
    read = FolderStorage.manifest

    def late(self: FolderStorage, step: int, **named: Any) -> Any:
        if step == 100 and step in self.steps():
            self.delete(step)  # as another rank does after a save
        return read(self, step, **named)

    monkeypatch.setattr(FolderStorage, "manifest", late)
    found = search(storage)
    assert found.manifest is not None
    assert (found.manifest.step, found.skipped, caplog.text) == (200, {}, "")


def test_it_is_the_reason_when_it_was_asked_for(storage: FolderStorage) -> None:
    empty = Path(storage.place) / "step-00000200"
    empty.mkdir()
    found = search(storage, 200)
    assert found.manifest is None
    assert "has no undaunted.json" in found.skipped[200]
    assert search(storage, 100) == Found(None, {})


def test_the_files_of_older_checkpoints_are_not_looked_at(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, step in enumerate((100, 200, 300)):
        save(storage, step, number=number)
    looked: list[str] = []
    lstat = os.lstat

    def counted(path: Any, **named: Any) -> os.stat_result:
        looked.append(os.fspath(path))
        return lstat(path, **named)

    monkeypatch.setattr(os, "lstat", counted)
    found = search(storage)
    assert found.manifest is not None
    assert found.manifest.step == 300
    assert {Path(path).parent.name for path in looked if path.endswith(".distcp")} == {
        "step-00000300"
    }


def test_the_next_best_is_found_where_the_newest_lacks_a_file(storage: FolderStorage) -> None:
    for number, step in enumerate((100, 200, 300)):
        save(storage, step, number=number)
    Path(storage.locate(300), "__0_0.distcp").unlink()
    found = search(storage)
    assert found.manifest is not None
    assert found.manifest.step == 200
    assert "__0_0.distcp is missing" in found.skipped[300]
