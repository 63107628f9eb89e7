"""Whenever the power goes: the old checkpoint loads or the new one, whole."""

from __future__ import annotations

import zlib
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.crash.disk import Disk
from tests.checkpointing.files.conformance import arena, ignore, manifest_of
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.format.manifest import File, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK = 4096


def save(storage: FolderStorage, step: int, session: str, number: int = 0) -> None:
    """Two ranks and metadata, a few bytes of each, which say what they are."""
    target = storage.target(step, session, number)
    files = {}
    for rank in range(2):
        content = f"rank {rank} step {step} {session}-{number}".encode()
        memory = arena(BLOCK)
        memory[: len(content)] = content
        image = Image(f"__{rank}_0.distcp", 0, len(content))
        files[image.name] = File(
            size=len(content), crc32=storage.write(target, image, memory, ignore)
        )
    content = f"metadata of {step} {session}-{number}".encode()
    storage.write_small(target, ".metadata", content)
    files[".metadata"] = File(size=len(content), crc32=f"{zlib.crc32(content):08x}")
    storage.commit(target, manifest_of(step, files, session, number))


def whole(storage: FolderStorage, step: int) -> Manifest | None:
    """The manifest of a checkpoint, if it can be used; then every byte of it is right."""
    try:
        manifest = storage.manifest(step)
    except DamagedCheckpointError:
        return None
    for name, file in manifest.files.items():
        buffer = bytearray(file.size)
        with closing(storage.open(step, name)) as reader:
            reader.read_into(0, memoryview(buffer))
        assert zlib.crc32(buffer) == int(file.crc32, 16), f"{name} of step {step} is a mix"
        assert f"{step} {manifest.session}-{manifest.attempt}".encode() in buffer
    return manifest


def found(storage: FolderStorage) -> dict[int, str]:
    """What can be used, by step: which session wrote it."""
    usable = {step: whole(storage, step) for step in storage.steps()}
    return {step: one.session for step, one in usable.items() if one is not None}


def replay(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[FolderStorage], None],
    act: Callable[[FolderStorage, Disk], None],
    judge: Callable[[dict[int, str], bool], None],
) -> int:
    """Crashes at every moment of `act`; returns how many different states that left.

    `judge` gets what can be used, and whether that was after the mark "done".
    """
    place = path / "place"
    with closing(FolderStorage(str(place), block_bytes=BLOCK)) as storage:
        prepare(storage)
        disk = Disk(place)
        with monkeypatch.context() as patch:
            disk.patch(patch)
            act(storage, disk)
        disk.finish()
    count = 0
    for count, (moment, tree) in enumerate(disk.crashes(), 1):
        tree.make(path / str(count))
        done = "done" in disk.marks and moment >= disk.marks["done"]
        with closing(FolderStorage(str(path / str(count)), block_bytes=BLOCK)) as after:
            judge(found(after), done)
            # The next start cleans up, and finds the same.
            before = found(after)
            after.sweep("next")
            assert found(after) == before
            assert not [name for name in (path / str(count)).iterdir() if "replaced" in name.name]
    return count


def two(storage: FolderStorage) -> None:
    save(storage, 100, "old")
    save(storage, 200, "old", 1)


def test_a_new_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(storage: FolderStorage, disk: Disk) -> None:
        save(storage, 300, "new")
        disk.mark("done")

    def judge(usable: dict[int, str], done: bool) -> None:
        before = {100: "old", 200: "old"}
        assert usable == before | {300: "new"} or (usable == before and not done)

    assert replay(tmp_path, monkeypatch, two, act, judge) > 10


def test_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(storage: FolderStorage, disk: Disk) -> None:
        save(storage, 0, "new")
        disk.mark("done")

    def judge(usable: dict[int, str], done: bool) -> None:
        assert usable == {0: "new"} or (usable == {} and not done)

    def nothing(storage: FolderStorage) -> None:
        storage.sweep("new")

    replay(tmp_path, monkeypatch, nothing, act, judge)


def test_a_step_that_is_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(storage: FolderStorage, disk: Disk) -> None:
        save(storage, 200, "new")
        disk.mark("done")

    def judge(usable: dict[int, str], done: bool) -> None:
        assert usable in ({100: "old", 200: "old"}, {100: "old", 200: "new"})
        assert not done or usable[200] == "new"

    assert replay(tmp_path, monkeypatch, two, act, judge) > 10


def test_deleting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(storage: FolderStorage, disk: Disk) -> None:
        storage.delete(100)
        disk.mark("done")

    def judge(usable: dict[int, str], done: bool) -> None:
        assert usable == {200: "old"} or (usable == {100: "old", 200: "old"} and not done)

    replay(tmp_path, monkeypatch, two, act, judge)


def test_saving_and_then_deleting_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one only: there is never a moment without one."""

    def one(storage: FolderStorage) -> None:
        save(storage, 100, "old")

    def act(storage: FolderStorage, disk: Disk) -> None:
        save(storage, 200, "new")
        storage.delete(100)
        disk.mark("done")

    def judge(usable: dict[int, str], done: bool) -> None:
        assert usable in ({100: "old"}, {100: "old", 200: "new"}, {200: "new"})
        assert not done or usable == {200: "new"}

    replay(tmp_path, monkeypatch, one, act, judge)


def test_a_crash_while_cleaning_up_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(storage: FolderStorage) -> None:
        two(storage)
        place = tmp_path / "place"
        (place / "step-00000200").rename(place / ".step-00000200.replaced-dead-7")
        (place / "step-00000100").rename(place / ".step-00000100.replaced-dead-6")
        save(storage, 100, "dead", 6)

    def act(storage: FolderStorage, disk: Disk) -> None:
        storage.sweep("new")

    def judge(usable: dict[int, str], done: bool) -> None:
        assert usable == {100: "dead", 200: "old"}

    replay(tmp_path, monkeypatch, prepare, act, judge)


def test_the_checker_finds_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without syncing, a crash is allowed to leave a checkpoint of zeros under its final name."""

    def careless(storage: FolderStorage, disk: Disk) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda fd: None)
            save(storage, 300, "new")
        disk.mark("done")

    def judge(usable: dict[int, str], done: bool) -> None:
        """A mix is found before this is asked."""

    def nothing(storage: FolderStorage) -> None:
        storage.sweep("new")

    with pytest.raises(AssertionError, match="is a mix"):
        replay(tmp_path, monkeypatch, nothing, careless, judge)


def test_the_checker_misses_nothing_that_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a folder is not synced after the rename, the new checkpoint may be gone."""

    def careless(storage: FolderStorage, disk: Disk) -> None:
        from undaunted.checkpointing.files import durable

        with monkeypatch.context() as patch:
            patch.setattr(durable, "sync_folder", lambda path: None)
            save(storage, 300, "new")
        disk.mark("done")

    seen = []

    def judge(usable: dict[int, str], done: bool) -> None:
        seen.append((usable, done))

    replay(tmp_path, monkeypatch, two, careless, judge)
    assert ({100: "old", 200: "old"}, True) in seen
