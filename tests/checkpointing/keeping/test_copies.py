"""Copies that processes of earlier rounds have left."""

from __future__ import annotations

import os

import pytest

from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.format.manifest import FORMAT_VERSION, File, Manifest, file_of
from undaunted.checkpointing.keeping.client import Left
from undaunted.checkpointing.keeping.copies import CopiedState, Copies
from undaunted.checkpointing.memory.arena import HEADER_BYTES, Arena, Description

CONTENT = b"the content of a file" * 10


def left(*, complete: bool = True, step: int = 7, session: str = "s1", rank: int = 0) -> Left:
    """An arena with one file, as a process of that rank has left it."""
    arena = Arena.create("test", 1 << 16)
    arena.begin()
    arena.memory[HEADER_BYTES : HEADER_BYTES + len(CONTENT)] = CONTENT
    if complete:
        image = Image(f"__{rank}_0.distcp", HEADER_BYTES, len(CONTENT))
        arena.complete(
            Description(
                step=step,
                epoch=1,
                session=session,
                rank=rank,
                world_size=2,
                structure="abc",
                files=[image],
                number=1,
            )
        )
    fd = os.dup(arena.fd)
    arena.close()
    return Left(rank, 0, fd)


def manifest(session: str, step: int = 7, file: File | None = None) -> Manifest:
    return Manifest(
        format=FORMAT_VERSION,
        step=step,
        epoch=1,
        world_size=2,
        session=session,
        attempt=10,
        structure="abc",
        block_bytes=1 << 23,
        files={"__0_0.distcp": file or file_of(CONTENT), "__1_0.distcp": File(size=1, crc32="")},
        saved_at=0.0,
        writer="test",
    )


class Elsewhere:
    """A storage that knows which files it was asked for."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def locate(self, step: int) -> str:
        return f"/step-{step}"

    def open(self, step: int, name: str, *, shared: bool = False) -> object:
        self.opened.append(name)
        return None


def read(source: object, name: str, offset: int = 0, size: int = 10) -> bytes:
    reader = source.open(7, name)  # type: ignore[attr-defined]
    buffer = bytearray(size)
    try:
        reader.read_into(offset, memoryview(buffer))
    finally:
        reader.close()
    return bytes(buffer)


def test_what_is_in_memory_is_read_from_there() -> None:
    copies, storage = Copies([left()]), Elsewhere()
    source = copies.overlay(storage, manifest("s1"))  # type: ignore[arg-type]
    assert read(source, "__0_0.distcp", offset=4, size=7) == CONTENT[4:11]
    assert storage.opened == []
    source.open(7, "__1_0.distcp")
    assert storage.opened == ["__1_0.distcp"]
    assert source.locate(7) == "/step-7"
    with pytest.raises(EOFError):
        read(source, "__0_0.distcp", offset=len(CONTENT) - 1, size=2)
    copies.close()


def test_a_rescued_state_is_found_under_its_new_session() -> None:
    copies, storage = Copies([left()]), Elsewhere()
    copies.overlay(storage, manifest("s2")).open(7, "__0_0.distcp")  # type: ignore[arg-type]
    assert storage.opened == ["__0_0.distcp"]
    copies.note_rescue(CopiedState(1, 7, 2, "s1", "abc", 1))
    source = copies.overlay(storage, manifest("s2"))  # type: ignore[arg-type]
    assert read(source, "__0_0.distcp") == CONTENT[:10]
    copies.close()


@pytest.mark.parametrize(
    "other", [manifest("s1", step=8), manifest("s1", file=File(size=3, crc32=""))], ids=repr
)
def test_what_belongs_to_another_checkpoint_is_not_used(other: Manifest) -> None:
    copies, storage = Copies([left()]), Elsewhere()
    copies.overlay(storage, other).open(7, "__0_0.distcp")  # type: ignore[arg-type]
    assert storage.opened == ["__0_0.distcp"]
    copies.close()


def test_incomplete_copies_and_other_memory_are_passed_over() -> None:
    other = os.memfd_create("other")
    os.truncate(other, 100)
    copies = Copies([left(complete=False), Left(0, 1, other), left(rank=1)])
    assert [copy.rank for copy in copies.all] == [1]
    copies.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(other)


def test_closing_tells_the_agent_and_survives_its_end() -> None:
    told: list[str] = []

    def drop() -> None:
        told.append("drop")
        raise BrokenPipeError

    Copies([], drop).close()
    assert told == ["drop"]
