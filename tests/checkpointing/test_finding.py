from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpointing.files.conformance import BLOCK, save
from undaunted.checkpointing.agreement.alone import Alone
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.finding import Found, find_together


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(str(tmp_path), block_bytes=BLOCK)


def search(storage: FolderStorage, wanted: int | None = None) -> Found:
    return find_together(storage, Alone("s1"), "search", 1.0, wanted)


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


def test_it_is_the_reason_when_it_was_asked_for(storage: FolderStorage) -> None:
    empty = Path(storage.place) / "step-00000200"
    empty.mkdir()
    found = search(storage, 200)
    assert found.manifest is None
    assert "has no undaunted.json" in found.skipped[200]
    assert search(storage, 100) == Found(None, {})
