"""Writes a file from its image: blocks in parallel, checksummed, past the page cache."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from undaunted.checkpointing.files.direct import ALIGNMENT, FILES, NOT_OFFERED, Files
from undaunted.checkpointing.files.sharing import share
from undaunted.checkpointing.format.manifest import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.checkpointing.format.image import Image

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class WriteOptions(NamedTuple):
    """The options by which files are written.

    Attributes:
        threads: that write blocks of one file at the same time.
        direct: pass the page cache by where the file system allows it.
        files: the system calls.
    """

    threads: int = 4
    direct: bool = True
    files: Files = FILES


DEFAULTS = WriteOptions()


def write_image(
    path: str,
    memory: memoryview,
    image: Image,
    block_bytes: int,
    wrote: Callable[[int], None],
    options: WriteOptions = DEFAULTS,
) -> str:
    """Write a file from its image and make its content durable; the folder is the caller's.

    Space is reserved before the first block. A file that cannot be written whole is removed.

    Args:
        path: of the file, in a folder that exists; a former file there is replaced.
        memory: the arena, with room up to the next multiple of 4096 behind the image.
        image: the file.
        block_bytes: of the blocks that get checksums; multiples of 4096 can pass the page cache by.
        wrote: called with the number of bytes after each block, by any thread; what it raises ends
            the write and is raised here.
        options: how.

    Returns:
        The checksums of the blocks, as in `manifest.File`.

    Raises:
        OSError: with the path, the errno and, where space is missing, what was needed and is free.
    """
    files = options.files
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        writing = _Writing(fd, memory, image, block_bytes, options)
        try:
            checksums = writing.run(wrote)
        except OSError as error:
            if error is not writing.failed:
                raise  # of the caller's
            raise _named(error, path, image.size, fd, files) from error
    except BaseException:
        with contextlib.suppress(OSError):
            files.close(fd)
        with contextlib.suppress(OSError):
            files.remove(path)
        raise
    try:
        files.close(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    return checksums


class _Writing:
    """One file.

    Attributes:
        failed: the error of the system's that has ended it.
    """

    def __init__(
        self, fd: int, memory: memoryview, image: Image, block_bytes: int, options: WriteOptions
    ) -> None:
        self.failed: OSError | None = None
        self._fd = fd
        self._files = options.files
        self._size = image.size
        self._block_bytes = block_bytes
        self._count = -(-image.size // block_bytes)
        self._threads = options.threads
        self._padded = -(-image.size // ALIGNMENT) * ALIGNMENT
        fits = block_bytes % ALIGNMENT == 0 and image.offset + self._padded <= len(memory)
        self._direct = options.direct and fits and image.size > 0
        room = self._padded if self._direct else image.size
        self._content = memory[image.offset : image.offset + room]
        self._checksums = [0] * self._count

    def run(self, wrote: Callable[[int], None]) -> str:
        try:
            self._prepare()
        except OSError as error:
            self.failed = error
            raise

        def write(blocks: Iterator[int]) -> None:
            for block in blocks:
                wrote(self._write_block(block))

        share(self._count, self._threads, "undaunted-write", write)
        try:
            self._files.cut(self._fd, self._size)
            self._files.sync(self._fd)
        except OSError as error:
            self.failed = error
            raise
        return "".join(f"{checksum:08x}" for checksum in self._checksums)

    def _prepare(self) -> None:
        if self._direct:
            try:
                self._files.set_direct(self._fd, on=True)
            except OSError as error:
                if error.errno not in NOT_OFFERED:
                    raise
                self._direct = False
        if self._size:
            try:
                self._files.allocate(self._fd, len(self._content))
            except OSError as error:
                if error.errno not in NOT_OFFERED:
                    raise

    def _write_block(self, block: int) -> int:
        start = block * self._block_bytes
        end = min(start + self._block_bytes, self._size)
        self._checksums[block] = crc32(self._content[start:end])
        try:
            self._write_range(start, end)
        except OSError as error:
            self.failed = self.failed or error
            raise self.failed from None
        return end - start

    def _write_range(self, start: int, end: int) -> None:
        at = start
        while at < end:
            direct = self._direct
            # Whole pages only; what is behind the end of the file is cut off later.
            until = min(end + -end % ALIGNMENT, len(self._content)) if direct else end
            try:
                count = self._files.write(self._fd, self._content[at:until], at)
            except OSError as error:
                if not direct or error.errno not in NOT_OFFERED:
                    raise
                self._leave_direct()
                continue
            if count == 0:
                raise OSError(errno.EIO, "the file system takes no bytes and names no error")
            at += count
            if direct and at < end and at % ALIGNMENT:
                self._leave_direct()
        if not self._direct:
            self._write_out(start, end)

    def _leave_direct(self) -> None:
        """Switch O_DIRECT off; a write under way may still fail, and its thread then comes here."""
        self._files.set_direct(self._fd, on=False)
        self._direct = False

    def _write_out(self, start: int, end: int) -> None:
        """So that the last sync is short, and memory is not filled with what is not written."""
        try:
            self._files.write_out(self._fd, start, end - start)
        except OSError as error:
            if error.errno not in {*NOT_OFFERED, errno.ESPIPE}:
                raise


def _named(error: OSError, path: str, size: int, fd: int, files: Files) -> OSError:
    number = error.errno or errno.EIO
    text = error.strerror or os.strerror(number)
    if number in _FULL:
        text += f" ({size} bytes are needed"
        if number != errno.EFBIG:  # there may be room, and the file may not have it
            with contextlib.suppress(OSError):
                text += f", {files.free_bytes(fd)} are free"
        text += ")"
    return OSError(number, text, path)
