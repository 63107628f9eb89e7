from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.files.conformance import (
    BLOCK,
    Conformance,
    content,
    manifest_of,
    read,
    save,
    write_attempt,
)
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.files.living import Living

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.checkpointing.files.storage import Storage

    Make = Callable[..., FolderStorage]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda run="": FolderStorage(
        str(tmp_path / "run" / "checkpoints"), run, block_bytes=BLOCK
    )


@pytest.fixture
def storage(make: Make) -> FolderStorage:
    return make()


def tree(storage: Storage) -> list[str]:
    return sorted(os.listdir(storage.place))


class TestFolder(Conformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        place = str(tmp_path / "run" / "checkpoints")
        return lambda run="": FolderStorage(place, run, block_bytes=BLOCK)

    def put(self, storage: Storage, step: int, name: str, data: bytes | None) -> None:
        path = Path(storage.locate(step)) / name
        path.unlink()
        if data is not None:
            path.write_bytes(data)

    def all(self, storage: Storage) -> dict[str, bytes]:
        paths = [path for path in Path(storage.place).rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}


def test_names_and_modes(storage: FolderStorage) -> None:
    storage.raise_epoch(3)
    save(storage, 100)
    write_attempt(storage, 200, number=1)
    assert tree(storage) == [".epoch", ".step-00000200.s1-1", "step-00000100"]
    for path in Path(storage.place).parent.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert sorted(os.listdir(storage.locate(100))) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "undaunted.json",
    ]


def test_a_folder_without_a_manifest_is_not_touched(storage: FolderStorage) -> None:
    mine = Path(storage.place) / "step-00000100"
    mine.mkdir(parents=True)
    (mine / "keep").write_text("me")
    save(storage, 50)
    assert storage.steps() == [50]
    assert {step: stray.path for step, stray in storage.strays().items()} == {100: str(mine)}
    target, files = write_attempt(storage, 100)
    with pytest.raises(FileExistsError, match="step-00000100"):
        storage.commit(target, manifest_of(100, files))
    with pytest.raises(FileNotFoundError, match="nothing was deleted"):
        storage.delete(100)
    assert (mine / "keep").read_text() == "me"


def test_links_are_neither_found_nor_deleted_nor_followed(
    storage: FolderStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(FolderStorage(str(tmp_path / "elsewhere"), block_bytes=BLOCK)) as elsewhere:
        save(elsewhere, 100)
        Path(storage.place).mkdir(parents=True)
        (Path(storage.place) / "step-00000100").symlink_to(elsewhere.locate(100))
        (Path(storage.place) / ".step-00000200.old-0").mkdir()
        (Path(storage.place) / ".step-00000200.old-0" / "link").symlink_to(elsewhere.place)
        (Path(storage.place) / ".step-00000300.old-0").symlink_to(elsewhere.place)
        assert storage.steps() == []
        stray = storage.strays()[100]
        assert "link" in stray.why
        assert "undaunted.json" not in stray.why, "it has one"
        with pytest.raises(FileNotFoundError):
            storage.delete(100)
        with pytest.raises(FileExistsError):
            save(storage, 100)
        assert storage.sweep("s1") == [".step-00000200.old-0"]
        assert "symbolic link" in caplog.text
        assert elsewhere.steps() == [100]
        assert read(elsewhere, 100, "__0_0.distcp") == content(0)
    storage.close()


def test_a_file_that_is_a_link_is_damage(storage: FolderStorage, tmp_path: Path) -> None:
    from undaunted.checkpointing.errors import DamagedCheckpointError

    save(storage, 100)
    path = Path(storage.locate(100)) / "__0_0.distcp"
    path.rename(tmp_path / "data")
    path.symlink_to(tmp_path / "data")
    with pytest.raises(DamagedCheckpointError, match="not a regular file"):
        storage.manifest(100)


def test_a_commit_that_died_between_its_renames_is_undone(storage: FolderStorage) -> None:
    save(storage, 100, session="old")
    Path(storage.locate(100)).rename(Path(storage.place) / ".step-00000100.replaced-dead-3")
    write_attempt(storage, 100, session="dead", number=3, seed=7)
    # Also before anybody sweeps.
    assert storage.steps() == [100]
    assert storage.manifest(100).session == "old"
    assert read(storage, 100, "__0_0.distcp") == content(0)
    storage.sweep("s1")
    storage.close()
    assert tree(storage) == ["step-00000100"]
    assert storage.manifest(100).session == "old"


def test_a_commit_that_died_after_its_renames_is_completed(storage: FolderStorage) -> None:
    save(storage, 100, session="old")
    Path(storage.locate(100)).rename(Path(storage.place) / ".step-00000100.replaced-dead-3")
    save(storage, 100, session="dead", number=3)
    assert storage.manifest(100).session == "dead"
    storage.sweep("s1")
    storage.close()
    assert tree(storage) == ["step-00000100"]
    assert storage.manifest(100).session == "dead"


def test_deleting_leaves_no_former_content_to_be_found(storage: FolderStorage) -> None:
    save(storage, 100, session="old")
    Path(storage.locate(100)).rename(Path(storage.place) / ".step-00000100.replaced-dead-3")
    save(storage, 100, session="dead", number=3)
    storage.delete(100)
    assert storage.steps() == []
    assert tree(storage) == []


def test_what_was_put_aside_and_half_removed_is_not_brought_back(storage: FolderStorage) -> None:
    """It would be in the way of every later save of that step."""
    save(storage, 100)
    left = Path(storage.place) / ".step-00000120.replaced-dead-3"
    left.mkdir()
    (left / "__0_0.distcp").write_bytes(b"what is left")
    storage.sweep("s2")
    storage.close()
    assert tree(storage) == ["step-00000100"]
    save(storage, 120, number=1)
    assert storage.steps() == [100, 120]


def test_a_refused_commit_leaves_the_former_checkpoint_in_place(make: Make) -> None:
    from undaunted.checkpointing.errors import StaleEpochError

    storage = make("run")
    storage.raise_epoch(5)
    save(storage, 100, epoch=5)
    target, files = write_attempt(storage, 100, session="s2", seed=3)
    with pytest.raises(StaleEpochError):
        storage.commit(target, manifest_of(100, files, "s2", epoch=4))
    assert tree(storage) == [".epoch", ".step-00000100.s2-0", "step-00000100"]


def test_what_is_being_deleted_is_swept(storage: FolderStorage) -> None:
    save(storage, 100)
    Path(storage.locate(100)).rename(Path(storage.place) / ".step-00000100.deleted-0a1b")
    assert storage.steps() == []
    assert storage.sweep("s1") == [".step-00000100.deleted-0a1b"]
    storage.close()
    assert tree(storage) == []


@pytest.mark.parametrize(
    ("theirs", "said"),
    [("", "started without undaunted run"), ("b", "run 'b'"), ("a", None)],
)
def test_another_job_in_the_same_place_is_told_of(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    theirs: str,
    said: str | None,
) -> None:
    monkeypatch.setattr(Living, "runs_elsewhere", lambda _: [theirs])
    with closing(make("a")) as storage:
        storage.sweep("s1")
        texts = [record.getMessage() for record in caplog.records]
    if said is None:  # rounds of one run have a fence
        assert texts == []
    else:
        assert len(texts) == 1
        assert texts[0].startswith(f"{storage.place}: another job ({said}) has these")
        assert texts[0].endswith("give each job its own directory")


def test_two_jobs_that_save_a_step_at_once_are_told(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, files = write_attempt(storage, 100)

    def other_job_saves(_: object) -> str:
        save(FolderStorage(storage.place, block_bytes=BLOCK), 100, session="s2")
        return ""

    monkeypatch.setattr(storage, "_put_aside", other_job_saves)
    with pytest.raises(OSError, match="another job has saved this step at the same moment"):
        storage.commit(target, manifest_of(100, files))
    assert storage.manifest(100).session == "s2"


def test_files_of_others_stay(storage: FolderStorage) -> None:
    place = Path(storage.place)
    for name in ("notes.txt", ".step-00000001", "step-1", ".step-00000001.x"):
        (place / name).mkdir(parents=True)
    storage.sweep("s1")
    assert storage.steps() == []
    storage.close()
    assert len(tree(storage)) == 4


def test_an_unreadable_fence_holds_nobody_back(make: Make) -> None:
    storage = make("run")
    Path(storage.place).mkdir(parents=True)
    (Path(storage.place) / ".epoch").write_bytes(b"\xff\x00")
    storage.raise_epoch(2)
    save(storage, 1, epoch=2)


def test_a_rename_whose_answer_was_lost(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS: the server has done it, is asked again, and finds nothing to rename."""
    rename = os.rename

    def twice(source: str, destination: str) -> None:
        rename(source, destination)
        rename(source, destination)

    target, files = write_attempt(storage, 100)
    monkeypatch.setattr(os, "rename", twice)
    storage.commit(target, manifest_of(100, files))
    assert storage.steps() == [100]


HOLDER = """
import sys
from undaunted.checkpointing.files.folder import FolderStorage
storage = FolderStorage(sys.argv[1])
storage.sweep("other")
storage.write_small(storage.target(5, "other", 0), "x", b"")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_a_session_lives_as_long_as_its_process(storage: FolderStorage, end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, storage.place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert storage.sweep("mine") == []
        assert ".step-00000005.other-0" in tree(storage)
        if end == "kill":
            other.kill()
        else:
            other.stdin.close()
        other.wait(60)
    assert storage.sweep("mine") == [".step-00000005.other-0"]
    assert tree(storage) == [".session-mine"]
    storage.close()
    assert tree(storage) == []
