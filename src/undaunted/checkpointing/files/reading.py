"""Reads parts of a file straight to where they are wanted, checking every block on the way."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import zlib
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from undaunted.checkpointing.files.direct import DirectReader
from undaunted.checkpointing.files.sharing import share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from undaunted.checkpointing.files.storage import FileReader
    from undaunted.checkpointing.format.manifest import File

_Item = TypeVar("_Item")

# Memory besides what things are read straight to; what is larger is read alone.
AT_ONCE_BYTES = 512 << 20
# Blocks with more parts are read into one buffer and taken apart there.
_MOST_PARTS = 256
# From here on a copy is worth a foreign call, which lets other threads run.
_LARGE_BYTES = 128 << 10


def in_batches(
    items: Iterable[_Item], memory_of: Callable[[_Item], int], most_bytes: int
) -> Iterator[list[_Item]]:
    """Cut a list where the memory of its own that it needs would be too much."""
    batch: list[_Item] = []
    size = 0
    for item in items:
        own = memory_of(item)
        if batch and size + own > most_bytes:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += own
    if batch:
        yield batch


class DamagedBlock(Exception):  # noqa: N818 - the caller makes an error of it that has names
    """A block does not have the bytes that were written, or is not there.

    Attributes:
        block: its index.
    """

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} is damaged")
        self.block = block


class Piece(NamedTuple):
    """Bytes of a file and where they go.

    Attributes:
        offset: in the file.
        destination: contiguous and writable; its length is the piece's.
    """

    offset: int
    destination: memoryview


def read_verified(
    open_file: Callable[[], FileReader],
    file: File,
    block_bytes: int,
    pieces: Sequence[Piece],
    threads: int,
    read: Callable[[int], None],
) -> None:
    """Fill the destinations of all pieces from one file. No byte that was not checked counts.

    Whole blocks are read, those that have something of a piece. When this raises, what is in
    the destinations is of no meaning.

    Args:
        open_file: called in each thread.
        file: size and checksums, from the manifest.
        block_bytes: from the manifest.
        pieces: in any order.
        threads: how many read at the same time, at most.
        read: called with the number of bytes after each block, by any thread; what it raises ends
            the reading and is raised here.

    Raises:
        DamagedBlock: the content is not what was written.
        OSError: the file cannot be read.
        ValueError: a piece does not lie in the file.
    """
    parts = _by_block(pieces, file.size, block_bytes)
    checksums = _checksums(file, block_bytes)
    reading = _Reading(open_file, file.size, block_bytes, checksums, parts, read)
    share(len(parts), threads, "undaunted-read", reading.run)


class WrongBlock(NamedTuple):
    """A block that is not what was written.

    Attributes:
        file: index of the file.
        block: its index in the file; None = the whole file.
        why: in words.
    """

    file: int
    block: int | None
    why: str


def check_blocks(
    files: Sequence[tuple[Callable[[], FileReader], File]],
    block_bytes: int,
    threads: int,
    read: Callable[[int], None],
) -> list[WrongBlock]:
    """Read every block of files and return those that are not what was written, in their order.

    Args:
        files: how each is opened, and its size and checksums from the manifest.
        block_bytes: from the manifest.
        threads: how many read at the same time, at most.
        read: called with the number of bytes after each block, by any thread; what it raises ends
            the reading and is raised here.

    Raises:
        OSError: a file is there and cannot be read, for another reason than its disk.
    """
    wrong: list[WrongBlock] = []
    blocks: list[tuple[int, int, int]] = []
    for at, (_, file) in enumerate(files):
        try:
            blocks += [(at, *block) for block in enumerate(_checksums(file, block_bytes))]
        except DamagedBlock:
            wrong.append(WrongBlock(at, None, "the manifest does not have its checksums"))

    def run(numbers: Iterator[int]) -> None:
        scratch = memoryview(mmap.mmap(-1, block_bytes))  # begins at a page
        with contextlib.ExitStack() as opened:
            current, reader = -1, None
            for number in numbers:
                at, block, checksum = blocks[number]
                open_file, file = files[at]
                offset = block * block_bytes
                content = scratch[: min(block_bytes, file.size - offset)]
                try:
                    if current != at or reader is None:
                        opened.close()
                        current, reader = at, open_file()
                        opened.callback(reader.close)
                    reader.read_into(offset, content)
                    if _checksum([content]) != checksum:
                        wrong.append(WrongBlock(at, block, "is not what was written"))
                except EOFError:
                    wrong.append(WrongBlock(at, block, "is cut short"))
                except FileNotFoundError:
                    wrong.append(WrongBlock(at, None, "is missing"))
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    wrong.append(WrongBlock(at, block, f"cannot be read: {error.strerror}"))
                read(len(content))

    share(len(blocks), threads, "undaunted-check", run)
    return sorted(set(wrong), key=lambda one: (one.file, -1 if one.block is None else one.block))


class _Part(NamedTuple):
    """What is wanted of one block."""

    start: int  # in the block
    destination: memoryview


def _by_block(pieces: Sequence[Piece], size: int, block_bytes: int) -> dict[int, list[_Part]]:
    parts: dict[int, list[_Part]] = {}
    for offset, memory in pieces:
        destination = memory if memory.format == "B" and memory.ndim == 1 else memory.cast("B")
        count = len(destination)
        if offset < 0 or offset + count > size:
            raise ValueError(f"bytes {offset} to {offset + count} of a file of {size} are wanted")
        done = 0
        while done < count:
            block, start = divmod(offset + done, block_bytes)
            until = min(count, done + block_bytes - start)
            parts.setdefault(block, []).append(_Part(start, destination[done:until]))
            done = until
    return parts


def _checksums(file: File, block_bytes: int) -> list[int]:
    try:
        checksums = file.checksums()
    except ValueError:
        checksums = []
    if len(checksums) != -(-file.size // block_bytes):
        raise DamagedBlock(0)
    return checksums


class _Reading:
    """One file."""

    def __init__(
        self,
        open_file: Callable[[], FileReader],
        size: int,
        block_bytes: int,
        checksums: list[int],
        parts: dict[int, list[_Part]],
        read: Callable[[int], None],
    ) -> None:
        self._open_file = open_file
        self._size = size
        self._block_bytes = block_bytes
        self._checksums = checksums
        self._parts = parts
        self._read = read
        self._blocks = sorted(parts)

    def run(self, blocks: Iterator[int]) -> None:
        """Read these of the blocks that are wanted."""
        scratch = memoryview(mmap.mmap(-1, self._block_bytes))  # begins at a page
        with contextlib.closing(self._open_file()) as reader:
            for at in blocks:
                self._read(self._read_block(self._blocks[at], reader, scratch))

    def _read_block(self, block: int, reader: FileReader, scratch: memoryview) -> int:
        offset = block * self._block_bytes
        content = scratch[: min(self._block_bytes, self._size - offset)]
        parts = self._parts[block]
        if isinstance(reader, DirectReader):
            buffers = _side_by_side(parts, content)
            if buffers and reader.read_cached(offset, buffers):
                self._check(block, buffers)
                return len(content)
        try:
            reader.read_into(offset, content)
        except EOFError:
            raise DamagedBlock(block) from None
        self._check(block, [content])
        for start, destination in parts:
            _copy(destination, content[start : start + len(destination)])
        return len(content)

    def _check(self, block: int, buffers: Sequence[memoryview]) -> None:
        if _checksum(buffers) != self._checksums[block]:
            raise DamagedBlock(block)


def _checksum(buffers: Iterable[memoryview]) -> int:
    checksum = 0
    for buffer in buffers:
        checksum = zlib.crc32(buffer, checksum)
    return checksum


def _side_by_side(parts: list[_Part], scratch: memoryview) -> list[memoryview]:
    """Return buffers for a whole block: destinations, and scratch memory where nobody wants it.

    Nothing is returned when that does not go: many parts, or several for the same bytes.
    """
    if len(parts) > _MOST_PARTS:
        return []
    buffers: list[memoryview] = []
    at = 0
    for start, destination in sorted(parts, key=lambda part: part.start):
        if start < at:
            return []
        if start > at:
            buffers.append(scratch[at:start])
        buffers.append(destination)
        at = start + len(destination)
    if at < len(scratch):
        buffers.append(scratch[at:])
    return buffers


def _copy(destination: memoryview, source: memoryview) -> None:
    if len(source) < _LARGE_BYTES:
        destination[:] = source
        return
    to, origin = (ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in (destination, source))
    ctypes.memmove(to, origin, len(source))
