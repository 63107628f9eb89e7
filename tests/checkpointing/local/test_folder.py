"""Files of local checkpoints on one node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.reading import Piece
from undaunted.checkpointing.local import folder, shard
from undaunted.checkpointing.local.folder import ShardFolder

if TYPE_CHECKING:
    from pathlib import Path


def image_of(iteration: int = 1, rank: int = 0, data: bytes = b"tensor"):
    head = shard.Head(
        format=1,
        iteration=iteration,
        rank=rank,
        world_size=1,
        session="s",
        save="a",
        saved_at=0.0,
        kind="k",
        state=b"",
        tensors=[shard.Tensor("uint8", [len(data)], 0, len(data))],
        data_bytes=len(data),
    )
    encoded = shard.encode_head(head)
    start = shard.data_offset(len(encoded))
    memory = bytearray(start + -(-len(data) // 4096) * 4096)
    memory[: len(encoded)] = encoded
    memory[start : start + len(data)] = data
    return head, memoryview(memory), start + len(data)


def write(files: ShardFolder, iteration: int = 1, rank: int = 0, **kwargs) -> Path:
    head, memory, size = image_of(iteration, rank)
    files.write(memory, size, head, lambda _: None, **kwargs)
    return files.own / folder.name_of(iteration, rank)


def content(file: folder.ShardFile) -> bytes:
    buffer = bytearray(file.head.tensors[0].size)
    folder.read(file, folder.pieces_of(file, [memoryview(buffer)]), 1, lambda _: None)
    return bytes(buffer)


def test_what_was_written_is_found_and_read(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path / "root", "s", 3)
    path = write(files)
    assert path == tmp_path / "root/s/3/iter_0000001_0_local.pt"
    assert path.stat().st_mode & 0o777 == 0o600
    assert files.own.stat().st_mode & 0o777 == 0o700
    (found,) = files.scan(pytest.fail)
    assert found.head == image_of()[0]
    assert content(found) == b"tensor"
    assert os.listdir(files.own) == [path.name]


def test_iterations_may_have_more_than_seven_digits(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "", 0)
    path = write(files, 123456789)
    assert path == tmp_path / "0/iter_123456789_0_local.pt"
    assert [found.head.iteration for found in files.scan()] == [123456789]


def test_every_truncation_and_every_flip_is_noticed(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "s", 0)
    path = write(files)
    whole = path.read_bytes()
    said: list[str] = []
    for size in [0, 1, 20, 300, 4096, len(whole) - 30, len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert files.scan(said.append) == []
        assert str(path) in said[-1]
    head_bytes, _ = shard.head_length(whole, "f")
    for at in [0, 9, 20, 40, head_bytes - 1, 4096, len(whole) - 1, len(whole) - 20]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        found = files.scan(said.append)
        if found:
            with pytest.raises(DamagedCheckpointError, match=r"block 0 is damaged \(tensor 0\)"):
                content(found[0])


def test_a_file_under_another_name_is_not_taken_for_what_it_is_called(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "s", 0)
    write(files).rename(files.own / folder.name_of(2, 0))
    said: list[str] = []
    assert files.scan(said.append) == []
    assert "is the shard of rank 0 at iteration 1" in said[0]


def test_links_and_others_are_not_followed(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "s", 0)
    path = write(files)
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    os.mkfifo(files.own / folder.name_of(2, 0))
    said: list[str] = []
    assert files.scan(said.append) == []
    assert len(said) == 2


def test_what_arrives_changed_is_not_kept(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "s", 0)
    with pytest.raises(DamagedCheckpointError, match="of rank 0 arrived changed"):
        write(files, expected="00000000")
    assert os.listdir(files.own) == []


def test_a_write_that_is_given_up_leaves_the_older_file(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "s", 0)
    path = write(files)
    before = path.read_bytes()

    def stop(_: int) -> None:
        raise InterruptedError

    head, memory, size = image_of(data=b"other")
    with pytest.raises(InterruptedError):
        files.write(memory, size, head, stop)
    assert path.read_bytes() == before
    assert os.listdir(files.own) == [path.name]


def test_leftovers_are_swept_and_nothing_else(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "s", 0)
    path = write(files)
    left = files.own / f".{path.name}.0a.tmp"
    left.write_bytes(b"half")
    (files.own / "mine.txt").write_bytes(b"")
    assert files.sweep() == [left]
    assert sorted(os.listdir(files.own)) == [path.name, "mine.txt"]


def test_old_ones_are_deleted(tmp_path: Path) -> None:
    mine, other = ShardFolder(tmp_path, "s", 0), ShardFolder(tmp_path, "s", 1)
    for iteration in (1, 2, 3):
        write(mine, iteration)
        write(mine, iteration, rank=1)
        write(other, iteration, rank=1)
    assert len(mine.delete(lambda iteration: iteration == 3)) == 2
    assert len(mine.delete_old(2)) == 3
    assert [(f.path.parent.name, f.head.iteration, f.head.rank) for f in mine.scan()] == [
        ("0", 2, 0),
        ("0", 2, 1),
        ("1", 2, 1),
        ("1", 3, 1),
    ]


@pytest.mark.parametrize("session", ["a/b", "..", ".", "a\0", "x" * 201])
def test_sessions_are_names(session: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be the name of a folder"):
        ShardFolder(tmp_path, session, 0)


def test_ranks_of_one_disk_are_recognised(tmp_path: Path) -> None:
    one, same, other = (
        ShardFolder(tmp_path / root, "s", rank) for root, rank in [("a", 0), ("a", 1), ("b", 0)]
    )
    assert one.identity() == same.identity() != other.identity()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    head, memory, size = image_of()
    (tmp_path / "file").write_bytes(b"")
    files = ShardFolder(tmp_path / "file", "s", 0)
    with pytest.raises(OSError, match="Not a directory"):
        files.write(memory, size, head, lambda _: None)


def test_pieces_outside_are_a_bug_of_the_caller(tmp_path: Path) -> None:
    files = ShardFolder(tmp_path, "s", 0)
    write(files)
    (found,) = files.scan()
    with pytest.raises(ValueError, match="are wanted"):
        folder.read(found, [Piece(found.image_bytes, memoryview(bytearray(1)))], 1, lambda _: None)
