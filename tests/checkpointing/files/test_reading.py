"""Reading parts of a file with every block checked."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undaunted.checkpointing.files.direct import DirectReader
from undaunted.checkpointing.files.reading import DamagedBlock, Piece, read_verified
from undaunted.checkpointing.format.manifest import File

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BLOCK = 16384


def described(content: bytes, block: int = BLOCK) -> File:
    starts = range(0, len(content), block)
    crc32 = "".join(f"{zlib.crc32(content[at : at + block]):08x}" for at in starts)
    return File(size=len(content), crc32=crc32)


class Memory:
    """A reader of bytes that counts."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []
        self.closed = 0

    def __call__(self) -> Memory:
        return self

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.reads.append((offset, len(buffer)))
        found = self.content[offset : offset + len(buffer)]
        if len(found) < len(buffer):
            raise EOFError("short")
        buffer[:] = found

    def close(self) -> None:
        self.closed += 1


def pieces_of(content: bytes, ranges: Sequence[tuple[int, int]]) -> list[Piece]:
    return [Piece(start, memoryview(bytearray(end - start))) for start, end in ranges]


def check(content: bytes, pieces: Sequence[Piece]) -> None:
    for offset, destination in pieces:
        assert bytes(destination) == content[offset : offset + len(destination)]


RANGES = st.lists(
    st.tuples(st.integers(0, 4 * BLOCK), st.integers(0, 4 * BLOCK)).map(
        lambda pair: (min(pair), max(pair))
    ),
    max_size=6,
)


@settings(max_examples=40)
@given(ranges=RANGES, threads=st.integers(1, 3), cached=st.booleans())
def test_any_pieces(tmp_path_factory, ranges, threads: int, cached: bool) -> None:
    content = os.urandom(4 * BLOCK)
    pieces = pieces_of(content, ranges)
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(content)
    reader = (lambda: DirectReader(str(path))) if cached else Memory(content)
    counts: list[int] = []
    read_verified(reader, described(content), BLOCK, pieces, threads, counts.append)
    check(content, pieces)
    touched = {
        b for start, end in ranges for b in range(start // BLOCK, -(-end // BLOCK)) if end > start
    }
    assert sum(counts) == BLOCK * len(touched)


def test_only_blocks_that_are_wanted_are_read_whole_and_once() -> None:
    content = os.urandom(5 * BLOCK - 100)
    reader = Memory(content)
    pieces = pieces_of(content, [(10, 20), (30, 40), (4 * BLOCK + 5, 4 * BLOCK + 6)])
    read_verified(reader, described(content), BLOCK, pieces, 1, lambda count: None)
    check(content, pieces)
    assert reader.reads == [(0, BLOCK), (4 * BLOCK, BLOCK - 100)]
    assert reader.closed == 1


def test_nothing_wanted() -> None:
    read_verified(Memory(b""), described(b""), BLOCK, [], 4, lambda count: None)


def test_many_small_pieces(tmp_path: Path) -> None:
    content = os.urandom(BLOCK)
    (tmp_path / "file").write_bytes(content)
    pieces = pieces_of(content, [(at, at + 7) for at in range(0, BLOCK - 8, 8)])
    path = str(tmp_path / "file")
    read_verified(lambda: DirectReader(path), described(content), BLOCK, pieces, 2, id)
    check(content, pieces)


def test_large_pieces_from_a_reader_without_a_cache() -> None:
    content = os.urandom(1 << 20)
    pieces = pieces_of(content, [(64, (1 << 20) - 64)])
    file = described(content, 1 << 19)
    read_verified(Memory(content), file, 1 << 19, pieces, 2, lambda count: None)
    check(content, pieces)


def test_destinations_of_other_formats() -> None:
    content = os.urandom(BLOCK)
    destination = memoryview(bytearray(64)).cast("d")
    pieces = [Piece(8, destination)]
    read_verified(Memory(content), described(content), BLOCK, pieces, 1, lambda count: None)
    assert destination.tobytes() == content[8:72]


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 3 * BLOCK + 77])
@pytest.mark.parametrize("cached", [True, False])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, at: int, cached: bool) -> None:
    content = bytearray(os.urandom(4 * BLOCK - 5))
    file = described(bytes(content))
    content[at] ^= 4
    path = tmp_path / "file"
    path.write_bytes(content)
    pieces = pieces_of(content, [(50, 4 * BLOCK - 100)])
    reader = (lambda: DirectReader(str(path))) if cached else Memory(bytes(content))
    with pytest.raises(DamagedBlock) as caught:
        read_verified(reader, file, BLOCK, pieces, 2, lambda count: None)
    assert caught.value.block == at // BLOCK


def test_a_flipped_bit_beside_what_is_wanted_is_found_in_the_same_block() -> None:
    content = bytearray(os.urandom(BLOCK))
    file = described(bytes(content))
    content[9000] ^= 1
    with pytest.raises(DamagedBlock):
        read_verified(Memory(bytes(content)), file, BLOCK, pieces_of(content, [(0, 8)]), 1, id)


@pytest.mark.parametrize("cached", [True, False])
def test_a_file_that_is_cut_short(tmp_path: Path, cached: bool) -> None:
    content = os.urandom(4 * BLOCK)
    path = tmp_path / "file"
    path.write_bytes(content[: 2 * BLOCK + 9])
    reader = (lambda: DirectReader(str(path))) if cached else Memory(path.read_bytes())
    with pytest.raises(DamagedBlock) as caught:
        read_verified(
            reader, described(content), BLOCK, pieces_of(content, [(0, 4 * BLOCK)]), 1, id
        )
    assert caught.value.block == 2


@pytest.mark.parametrize("crc32", ["", "00000000" * 2, "0000000g", "0000"])
def test_checksums_that_are_none(crc32: str) -> None:
    content = b"x" * 10
    file = File(size=10, crc32=crc32)
    with pytest.raises(DamagedBlock):
        read_verified(Memory(content), file, BLOCK, pieces_of(content, [(0, 10)]), 1, id)


def test_a_piece_beyond_the_file() -> None:
    content = b"x" * 10
    with pytest.raises(ValueError, match="bytes 5 to 11 of a file of 10 are wanted"):
        read_verified(
            Memory(content), described(content), BLOCK, pieces_of(content, [(5, 11)]), 1, id
        )


def test_what_the_caller_raises_ends_the_reading() -> None:
    content = os.urandom(40 * BLOCK)
    reader = Memory(content)

    def read(count: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        read_verified(
            reader, described(content), BLOCK, pieces_of(content, [(0, 40 * BLOCK)]), 2, read
        )
    assert len(reader.reads) <= 2
    assert reader.closed in (1, 2)  # a thread that comes late opens nothing


def test_an_error_of_the_system_is_passed_on() -> None:
    def missing() -> Memory:
        raise FileNotFoundError(2, "gone", "file")

    with pytest.raises(FileNotFoundError, match="gone"):
        read_verified(missing, described(b"x"), BLOCK, pieces_of(b"x", [(0, 1)]), 1, id)
