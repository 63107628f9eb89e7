from __future__ import annotations

from pathlib import Path

import pytest

from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.files.places import open_storage


@pytest.mark.parametrize("where", ["relative", "/absolute", Path("/x/y"), "file:///data/run 1"])
def test_folders(where: str | Path) -> None:
    storage = open_storage(where)
    assert isinstance(storage, FolderStorage)
    assert storage.place == str(Path(str(where).removeprefix("file://")).absolute())


@pytest.mark.parametrize("where", ["", "file://", "file://host/x"])
def test_what_is_no_place(where: str) -> None:
    with pytest.raises(ValueError, match=r"give a folder|three slashes"):
        open_storage(where)


def test_object_stores() -> None:
    pytest.importorskip("fsspec")
    assert type(open_storage("memory://x")).__name__ == "ObjectStorage"
    with pytest.raises(ValueError, match="nothing"):
        open_storage("nothing://x")
