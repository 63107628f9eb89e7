from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory import arena as arenas
from undaunted.checkpointing.memory.arena import Arena, ArenaTooSmallError, Description

SIZE = 1 << 16


@pytest.fixture
def arena():
    one = Arena.create("test", SIZE)
    yield one
    one.close()


def description(**changes: object) -> Description:
    told = Description(step=3, epoch=1, session="s", rank=0, world_size=2, structure="ab", files=[])
    return msgspec.structs.replace(told, **changes)


def test_a_new_one_has_nothing_to_tell(arena: Arena) -> None:
    assert arena.size == SIZE
    assert len(arena.memory) == SIZE
    assert arena.generation == 0
    assert arena.description() is None


def test_another_process_sees_what_was_completed(arena: Arena) -> None:
    told = description(files=[Image("a", 4096, 5000)], report=b"r", metadata=b"m")
    arena.begin()
    assert arena.description() is None
    arena.memory[4096:4100] = b"data"
    arena.complete(told)
    other = Arena.open(os.dup(arena.fd))
    assert other.description() == told
    assert other.generation == 1
    assert bytes(other.memory[4096:4100]) == b"data"
    other.close()


def test_copying_makes_the_former_content_count_for_nothing(arena: Arena) -> None:
    arena.begin()
    arena.complete(description())
    arena.begin()
    assert arena.description() is None
    assert arena.generation == 2


@pytest.mark.parametrize("word", [arenas.DESCRIPTION_AT, arenas.DESCRIPTION_CRC])
def test_a_damaged_description_counts_for_nothing(arena: Arena, word: int) -> None:
    arena.begin()
    arena.complete(description())
    with arena.memory[: arenas.HEADER_BYTES].cast("Q") as words:
        words[word] ^= 1 << 40
    assert arena.description() is None


def test_memory_stays_mapped_as_long_as_a_tensor_lies_over_it() -> None:
    torch = pytest.importorskip("torch")
    arena = Arena.create("test-outlived", SIZE)
    tensor = torch.frombuffer(arena.memory, dtype=torch.uint8, offset=arenas.HEADER_BYTES)
    arena.close()
    assert mapped("test-outlived")
    tensor.fill_(1)
    del tensor
    assert not mapped("test-outlived")


def test_what_was_forgotten_is_closed() -> None:
    fd = Arena.create("test-forgotten", SIZE).fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert not mapped("test-forgotten")


def mapped(name: str) -> bool:
    return name in Path("/proc/self/maps").read_text()


def test_no_room_for_the_description(arena: Arena) -> None:
    with pytest.raises(ArenaTooSmallError) as caught:
        arena.complete(description(metadata=bytes(SIZE)))
    assert caught.value.needed > SIZE
    assert arena.description() is None


def test_what_is_no_arena_is_refused() -> None:
    for size in (10, 8192):
        fd = os.memfd_create("other")
        os.ftruncate(fd, size)
        with pytest.raises(ValueError, match="arena"):
            Arena.open(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_touching_changes_nothing() -> None:
    """Whether a page is there already or not, and also where several threads do it."""
    arena = Arena.create("test", (9 << 20) + 5)
    for at in (5000, 5 << 20, (9 << 20) + 4):
        arena.memory[at] = 1
    before = bytes(arena.memory)
    arena.touch()
    assert bytes(arena.memory) == before
    assert arena.description() is None
    arena.close()


def test_close_leaves_the_memory_to_those_who_look_at_it(arena: Arena) -> None:
    looking = arena.memory[4096:8192]
    arena.close()
    arena.close()
    assert bytes(looking[:2]) == b"\0\0"
    looking.release()
