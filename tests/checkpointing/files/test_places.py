from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.checkpointing.files.conformance import save
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


def test_a_name_that_is_no_text() -> None:
    with pytest.raises(ValueError, match=r"udcff'.* UTF-8"):
        open_storage("/tmp/\udcff")


def test_object_stores(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    assert type(open_storage(f"local://{tmp_path}")).__name__ == "ObjectStorage"
    with pytest.raises(ValueError, match="nothing"):
        open_storage("nothing://x")


@pytest.mark.parametrize("where", ["s3://", "s3:///", "://", "://x"])
def test_a_url_without_a_place_is_refused(where: str) -> None:
    """It would be a folder of that name."""
    with pytest.raises(ValueError, match="names no place in the store"):
        open_storage(where)


def test_memory_of_one_process_is_refused() -> None:
    with pytest.raises(ValueError, match=r"memory://x: .* written by another"):
        open_storage("memory://x")


@pytest.mark.parametrize("where", ["s3://bucket//x", "gs://bucket/x//y/"])
def test_an_empty_name_in_a_bucket_is_refused(where: str) -> None:
    """Objects below it are written, and not found."""
    with pytest.raises(ValueError, match="two slashes") as caught:
        open_storage(where)
    assert where.rstrip("/").replace("t//", "t/").replace("x//", "x/") in str(caught.value)


@pytest.mark.parametrize("name", ["layers=[2,2]", "a*", "a?", "{a,b}", "[!b]"])
def test_no_name_of_a_folder_is_a_pattern(tmp_path: Path, name: str) -> None:
    with closing(open_storage(tmp_path / "layers=2")) as theirs:
        save(theirs, 1)
    with closing(open_storage(tmp_path / name)) as mine:
        save(mine, 1)
        mine.delete(1)
        assert mine.steps() == []
    with closing(open_storage(tmp_path / "layers=2")) as theirs:
        assert theirs.steps() == [1]
