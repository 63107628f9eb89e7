"""Reads parts of a file straight to where they are wanted, checking every block on the way."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from undaunted.checkpointing.files.direct import DirectReader
from undaunted.checkpointing.files.sharing import share
from undaunted.checkpointing.format.manifest import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from undaunted.checkpointing.files.storage import FileReader
    from undaunted.checkpointing.format.manifest import File

_Item = TypeVar("_Item")

# Memory besides what things are read straight to; what is larger is read alone.
AT_ONCE_BYTES = 512 << 20
# Blocks with more parts are read into one buffer and taken apart there.
_MOST_PARTS = 256
_HUGE_BYTES = 2 << 20
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
        file: index of the file, if there are several.
    """

    def __init__(self, block: int, file: int = 0) -> None:
        super().__init__(f"block {block} is damaged")
        self.block = block
        self.file = file


class Unreadable(Exception):  # noqa: N818 - the caller makes an error of it that has the path
    """A file cannot be read at all.

    Attributes:
        file: index of the file.
        error: an OSError, or a ValueError for a piece that does not lie in the file.
    """

    def __init__(self, file: int, error: OSError | ValueError) -> None:
        super().__init__(str(error))
        self.file = file
        self.error = error


class MemoryReader:
    """A file that lies in memory. Implements `storage.FileReader`."""

    def __init__(self, content: memoryview) -> None:
        """Args: the content; the memory is the caller's."""
        self._content = content

    def part(self, offset: int, count: int) -> memoryview:
        """Return a part, as it lies there; an EOFError when there is not so much."""
        part = self._content[offset : offset + count]
        if len(part) < count:
            raise EOFError(f"{count} bytes from {offset} of {len(self._content)}")
        return part

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See `FileReader`."""
        _copy(buffer, self.part(offset, len(buffer)))

    def close(self) -> None:
        """See `FileReader`."""
        self._content.release()


class Piece(NamedTuple):
    """Bytes of a file and where they go.

    Attributes:
        offset: in the file.
        destination: contiguous and writable; its length is the piece's.
    """

    offset: int
    destination: memoryview


class Wanted(NamedTuple):
    """The part of one file that is wanted.

    Attributes:
        open: called in each thread that reads it.
        file: size and checksums, from the manifest.
        pieces: in any order.
    """

    open: Callable[[], FileReader]
    file: File
    pieces: Sequence[Piece]


def read_verified(
    open_file: Callable[[], FileReader],
    file: File,
    block_bytes: int,
    pieces: Sequence[Piece],
    threads: int,
    read: Callable[[int], None],
) -> None:
    """Fill the destinations of all pieces from one file; see `read_files`.

    Raises:
        DamagedBlock: the content is not what was written.
        OSError: the file cannot be read.
        ValueError: a piece does not lie in the file.
    """
    try:
        read_files([Wanted(open_file, file, pieces)], block_bytes, threads, read)
    except Unreadable as failed:
        raise failed.error from None


def read_files(
    wanted: Sequence[Wanted], block_bytes: int, threads: int, read: Callable[[int], None]
) -> None:
    """Fill the destinations of all pieces of files. No byte that was not checked counts.

    Whole blocks are read, those that have something of a piece, of all files at the same time. When
    this raises, what is in the destinations is of no meaning.

    Args:
        wanted: the files.
        block_bytes: from the manifest.
        threads: how many read at the same time, at most.
        read: called with the number of bytes after each block, by any thread; what it raises ends
            the reading and is raised here.

    Raises:
        DamagedBlock: the content is not what was written.
        Unreadable: a file cannot be read, or a piece does not lie in it.
    """
    blocks = [block for at, one in enumerate(wanted) for block in _blocks(at, one, block_bytes)]
    largest = max((block.size for block in blocks), default=0)

    def run(numbers: Iterator[int]) -> None:
        scratch = _scratch(largest)
        with contextlib.ExitStack() as opened:
            current = -1
            for number in numbers:
                block = blocks[number]
                try:
                    if block.file != current:
                        opened.close()
                        reader = wanted[block.file].open()
                        opened.callback(reader.close)
                        current = block.file
                    checksum = _read_block(block, reader, scratch[: block.size])
                except EOFError:
                    raise DamagedBlock(block.number, block.file) from None
                except (OSError, ValueError) as error:
                    raise Unreadable(block.file, error) from error
                if checksum != block.checksum:
                    raise DamagedBlock(block.number, block.file)
                read(block.size)

    share(len(blocks), threads, "undaunted-read", run)


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
        scratch = _scratch(block_bytes)
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
                    if crc32(content) != checksum:
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


class _BlockPart(NamedTuple):
    """Bytes of a block that are wanted in one place."""

    start: int  # in the block
    destination: memoryview


class _Block(NamedTuple):
    """A block that is read."""

    file: int
    number: int
    offset: int
    size: int
    checksum: int
    parts: list[_BlockPart]


def _blocks(at: int, wanted: Wanted, block_bytes: int) -> Iterator[_Block]:
    size = wanted.file.size
    try:
        parts = _by_block(wanted.pieces, size, block_bytes)
    except ValueError as error:
        raise Unreadable(at, error) from error
    try:
        checksums = _checksums(wanted.file, block_bytes)
    except DamagedBlock as error:
        raise DamagedBlock(error.block, at) from None
    for number in sorted(parts):
        offset = number * block_bytes
        length = min(block_bytes, size - offset)
        yield _Block(at, number, offset, length, checksums[number], parts[number])


def _by_block(pieces: Sequence[Piece], size: int, block_bytes: int) -> dict[int, list[_BlockPart]]:
    parts: dict[int, list[_BlockPart]] = {}
    for offset, memory in pieces:
        destination = memory if memory.format == "B" and memory.ndim == 1 else memory.cast("B")
        count = len(destination)
        if offset < 0 or offset + count > size:
            raise ValueError(f"bytes {offset} to {offset + count} of a file of {size} are wanted")
        done = 0
        while done < count:
            block, start = divmod(offset + done, block_bytes)
            until = min(count, done + block_bytes - start)
            parts.setdefault(block, []).append(_BlockPart(start, destination[done:until]))
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


def _read_block(block: _Block, reader: FileReader, scratch: memoryview) -> int:
    """Fill the destinations of a block; return its checksum."""
    in_memory = isinstance(reader, MemoryReader)
    if isinstance(reader, MemoryReader):
        content = reader.part(block.offset, block.size)
    else:
        content = scratch[: block.size]
    spans = _side_by_side(block.parts, content)
    straight = False
    if spans and isinstance(reader, DirectReader) and reader.uses_cache(block.offset, block.size):
        spans = _close_together(spans, scratch)
        reader.fill(block.offset, [place for _, place in spans])
        straight = True
    elif not in_memory:
        reader.read_into(block.offset, content)
    if not spans:
        for start, destination in block.parts:
            _copy(destination, content[start : start + len(destination)])
        return crc32(content)
    checksum = 0
    for part, place in spans:
        if not straight and place is not part:
            _copy(place, part)
        checksum = crc32(place, checksum)
    return checksum


def _side_by_side(
    parts: Sequence[_BlockPart], content: memoryview
) -> list[tuple[memoryview, memoryview]]:
    """Cut a block's content where what is wanted begins and ends; add where each part of it goes.

    What nobody wants stays in its place. Nothing is returned when that does not go: many parts, or
    several for the same bytes.
    """
    if len(parts) > _MOST_PARTS:
        return []
    spans: list[tuple[memoryview, memoryview]] = []
    at = 0
    for start, destination in sorted(parts, key=lambda part: part.start):
        if start < at:
            return []
        if start > at:
            unwanted = content[at:start]
            spans.append((unwanted, unwanted))
        at = start + len(destination)
        spans.append((content[start:at], destination))
    if at < len(content):
        unwanted = content[at:]
        spans.append((unwanted, unwanted))
    return spans


def _close_together(
    spans: Sequence[tuple[memoryview, memoryview]], scratch: memoryview
) -> list[tuple[memoryview, memoryview]]:
    """Put what nobody wants one after the other: each further huge page would cost its zeros."""
    found, at = [], 0
    for part, place in spans:
        wanted = place is not part
        found.append((part, place if wanted else scratch[at : at + len(part)]))
        at += 0 if wanted else len(part)
    return found


def _scratch(size: int) -> memoryview:
    """Return memory that begins at a page, of huge pages if it is large.

    A disk reads to these twice as fast as to small ones, which it is given piece by piece.
    """
    memory = mmap.mmap(-1, size + _HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_BYTES
    return memoryview(memory)[start : start + size]


def _copy(destination: memoryview, source: memoryview) -> None:
    if len(source) < _LARGE_BYTES:
        destination[:] = source
        return
    to, origin = (ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in (destination, source))
    ctypes.memmove(to, origin, len(source))
