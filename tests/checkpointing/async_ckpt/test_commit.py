"""A checkpoint comes into being at one moment; until then the former one is there."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex  # noqa: E402

from undaunted.checkpointing.async_ckpt import filesystem_async as commit  # noqa: E402
from undaunted.checkpointing.async_ckpt.filesystem_async import Destination, write_through  # noqa: E402
from undaunted.checkpointing.dcp.torch_private import storage_info  # noqa: E402
from undaunted.checkpointing.files import durable  # noqa: E402
from undaunted.checkpointing.format import manifest as manifests  # noqa: E402
from undaunted.checkpointing.format.manifest import file_of  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


class PowerError(Exception):
    """It went out."""


def make(folder: Path, name: str, content: bytes) -> tuple[Metadata, dict[str, manifests.File]]:
    (folder / name).write_bytes(content)
    places = {MetadataIndex("a"): storage_info(name, 0, len(content))}
    return Metadata({}, storage_data=places), {name: file_of(content)}


def read(folder: Path) -> tuple[str, bytes]:
    """The data file of the checkpoint, found as a reader finds it; checked where that goes."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (place,) = metadata.storage_data.values()
    content = (folder / place.relative_path).read_bytes()
    manifest = folder / "undaunted.json"
    if manifest.exists():
        files = manifests.decode(manifest.read_bytes(), "").files
        assert files[place.relative_path] == file_of(content)
        assert files[".metadata"] == file_of((folder / ".metadata").read_bytes())
    return place.relative_path, content


@pytest.mark.parametrize("at", range(8))
def test_power_fails_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    to = Destination(tmp_path, open)
    to.commit(*make(tmp_path, "old", b"old content"), 1)
    assert read(tmp_path) == ("old", b"old content")
    metadata, files = make(tmp_path, "new", b"new")
    steps = [0]

    def step(name: str, owner: Any) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if steps[0] >= at:
                raise PowerError
            steps[0] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for name in ("write_file", "sync_folder"):
        step(name, durable)
    step("replace", durable.os)
    step("_remove", Destination)
    try:
        to.commit(metadata, files, 1)
    except PowerError:
        assert read(tmp_path) in [("old", b"old content"), ("new", b"new")]
    monkeypatch.undo()
    to.commit(metadata, files, 1)
    assert read(tmp_path) == ("new", b"new")


def test_files_of_the_former_checkpoint_are_removed_and_no_others(tmp_path: Path) -> None:
    to = Destination(tmp_path, open)
    assert not to.is_occupied()
    to.commit(*make(tmp_path, "old", b"old"), 1)
    (tmp_path / "notes").write_text("mine")
    assert to.is_occupied()
    to.commit(*make(tmp_path, "new", b"new"), 1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".metadata", "new", "notes", "undaunted.json"}


def test_what_is_left_of_saves_is_told_from_what_is_not_ours(tmp_path: Path) -> None:
    to = Destination(tmp_path, open)
    left = ["__0_0.0123abcd.distcp", "optimizer__12_1.89abcdef.distcp"]
    for name in [*left, "__0_0.distcp", "notes", "__0_0.0123abcd.distcp.mine"]:
        (tmp_path / name).write_bytes(b"x")
    assert sorted(to.leftovers()) == left
    to.commit(*make(tmp_path, "__0_0.11111111.distcp", b"new"), 1)
    assert sorted(to.leftovers()) == left
    (tmp_path / "undaunted.json").unlink()
    assert sorted(to.leftovers()) == left
    (tmp_path / ".metadata").write_bytes(b"rubbish")  # nobody knows any more what is part of it
    assert to.leftovers() == []
    to.remove([*left, "missing"])
    assert not any((tmp_path / name).exists() for name in left)
    assert Destination(tmp_path / "missing", open).leftovers() == []


def test_a_name_in_old_metadata_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (tmp_path / "precious").write_text("mine")
    to = Destination(folder, open)
    metadata, files = make(folder, "old", b"old")
    places = {MetadataIndex("a"): storage_info("../precious", 0, 3)}
    to.commit(Metadata({}, storage_data=places), files, 1)
    to.commit(metadata, files, 1)
    assert (tmp_path / "precious").exists()


def test_old_metadata_that_cannot_be_read_do_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"rubbish")
    Destination(tmp_path, open).commit(*make(tmp_path, "new", b"new"), 1)
    assert read(tmp_path) == ("new", b"new")


def test_what_is_written_by_a_function_has_the_same_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit.manifests, "BLOCK_BYTES", 4)
    checksums = write_through(open, str(tmp_path / "x"), memoryview(b"0123456789"))
    assert (tmp_path / "x").read_bytes() == b"0123456789"
    assert checksums == file_of(b"0123456789", 4).crc32
