"""Writing a file from its image, also where the system calls fail."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undaunted.checkpointing.files.blocks import WriteOptions, write_image
from undaunted.checkpointing.files.direct import Files
from undaunted.checkpointing.format.image import Image

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 16384


def arena(size: int) -> memoryview:
    memory = mmap.mmap(-1, size)
    memory[:] = (os.urandom(4099) * (size // 4099 + 1))[:size]
    return memoryview(memory)


def checksums(content: bytes, block: int = BLOCK) -> str:
    return "".join(
        f"{zlib.crc32(content[at : at + block]):08x}" for at in range(0, len(content), block)
    )


def write(path: Path, memory: memoryview, image: Image, files: Files | None = None, **how) -> str:
    options = WriteOptions(files=files or Files(), **how)
    return write_image(str(path), memory, image, BLOCK, lambda count: None, options)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", [0, 1, 4096, BLOCK, BLOCK + 1, 5 * BLOCK - 7])
def test_the_file_is_the_image(tmp_path: Path, size: int, direct: bool) -> None:
    memory = arena(4096 + 6 * BLOCK)
    content = bytes(memory[4096 : 4096 + size])
    counts: list[int] = []
    path = tmp_path / "file"
    options = WriteOptions(threads=3, direct=direct)
    image = Image("file", 4096, size)
    assert write_image(str(path), memory, image, BLOCK, counts.append, options) == checksums(
        content
    )
    assert path.read_bytes() == content
    assert sum(counts) == size
    assert path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=20)
@given(size=st.integers(0, 5 * BLOCK), pages=st.integers(0, 3), room=st.booleans())
def test_any_size_and_place(tmp_path_factory, size: int, pages: int, room: bool) -> None:
    offset = pages * 4096
    memory = arena(max(1, offset + size) + (4096 if room else 0))
    path = tmp_path_factory.mktemp("any") / "file"
    content = bytes(memory[offset : offset + size])
    assert write(path, memory, Image("file", offset, size), threads=2) == checksums(content)
    assert path.read_bytes() == content


def test_memory_and_blocks_that_are_not_aligned(tmp_path: Path) -> None:
    memory = arena(4 * BLOCK)[1:]
    content = bytes(memory[: 3 * BLOCK])
    write(tmp_path / "a", memory, Image("a", 0, 3 * BLOCK))
    assert (tmp_path / "a").read_bytes() == content
    image = Image("b", 0, 10_000)
    found = write_image(str(tmp_path / "b"), memory, image, 999, lambda count: None)
    assert found == checksums(content[:10_000], 999)
    assert (tmp_path / "b").read_bytes() == content[:10_000]


def test_a_former_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    write(path, arena(BLOCK), Image("file", 0, 10))
    assert path.stat().st_size == 10


class Fault(Files):
    """Some calls fail or do less."""

    def __init__(self, **errors: int) -> None:
        super().__init__()
        self.errors = errors
        self.writes = 0
        self.synced = False
        self.written_out = 0
        self.allocated = 0

    def _fail(self, name: str) -> None:
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]))

    def set_direct(self, fd: int, *, on: bool) -> None:
        if on:
            self._fail("set_direct")
        super().set_direct(fd, on=on)

    def allocate(self, fd: int, size: int) -> None:
        self._fail("allocate")
        self.allocated = size
        super().allocate(fd, size)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        self.writes += 1
        self._fail("write")
        return super().write(fd, data, offset)

    def write_out(self, fd: int, offset: int, count: int) -> None:
        self.written_out += count
        self._fail("write_out")
        super().write_out(fd, offset, count)

    def cut(self, fd: int, size: int) -> None:
        self._fail("cut")
        super().cut(fd, size)

    def sync(self, fd: int) -> None:
        self._fail("sync")
        self.synced = True
        super().sync(fd)

    def close(self, fd: int) -> None:
        super().close(fd)
        self._fail("close")


@pytest.mark.parametrize("call", ["allocate", "write", "cut", "sync", "close"])
def test_a_call_that_fails_is_named_with_the_path(tmp_path: Path, call: str) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="Input/output error") as caught:
        write(path, arena(4 * BLOCK), Image("file", 0, 4 * BLOCK), Fault(**{call: errno.EIO}))
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output"):
        write(tmp_path / "file", arena(BLOCK), Image("file", 0, BLOCK), Fault(write=errno.EIO))
    assert list(tmp_path.iterdir()) == []


def test_missing_space_is_found_before_the_first_block(tmp_path: Path) -> None:
    files = Fault(allocate=errno.ENOSPC)
    expected = rf"No space left on device \({BLOCK - 1} bytes are needed, \d+ are free\).*file"
    with pytest.raises(OSError, match=expected) as caught:
        write(tmp_path / "file", arena(BLOCK), Image("file", 0, BLOCK - 1), files)
    assert caught.value.errno == errno.ENOSPC
    assert files.writes == 0


def test_the_limit_of_a_file_size(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write(tmp_path / "file", arena(2 * BLOCK), Image("file", 0, 2 * BLOCK))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG


def test_a_file_system_without_any_of_it(tmp_path: Path) -> None:
    files = Fault(set_direct=errno.EINVAL, allocate=errno.EOPNOTSUPP, write_out=errno.ENOSYS)
    memory = arena(3 * BLOCK)
    write(tmp_path / "file", memory, Image("file", 0, 3 * BLOCK - 5), files)
    assert (tmp_path / "file").read_bytes() == bytes(memory)[:-5]
    assert files.synced
    assert files.written_out == 3 * BLOCK - 5  # asked for, so that the last sync is short


def test_direct_writes_that_are_refused_only_when_they_come(tmp_path: Path) -> None:
    class Refusing(Fault):
        direct = True

        def set_direct(self, fd: int, *, on: bool) -> None:
            self.direct = on

        def write(self, fd: int, data: memoryview, offset: int) -> int:
            if self.direct:
                raise OSError(errno.EINVAL, "unaligned")
            return super().write(fd, data, offset)

    memory = arena(3 * BLOCK)
    write(tmp_path / "file", memory, Image("file", 0, 3 * BLOCK - 5), Refusing())
    assert (tmp_path / "file").read_bytes() == bytes(memory)[:-5]


@pytest.mark.parametrize("step", [1, 4096, 5000])
def test_short_writes_are_continued(tmp_path: Path, step: int) -> None:
    class Short(Files):
        def write(self, fd: int, data: memoryview, offset: int) -> int:
            return super().write(fd, data[: max(step, len(data) // 3 // step * step)], offset)

    memory = arena(3 * BLOCK)
    write(tmp_path / "file", memory, Image("file", 0, 3 * BLOCK - 5), Short())
    assert (tmp_path / "file").read_bytes() == bytes(memory)[:-5]


def test_a_write_that_takes_nothing(tmp_path: Path) -> None:
    class Nothing(Files):
        def write(self, fd: int, data: memoryview, offset: int) -> int:
            return 0

    with pytest.raises(OSError, match="takes no bytes") as caught:
        write(tmp_path / "file", arena(BLOCK), Image("file", 0, BLOCK), Nothing())
    assert caught.value.errno == errno.EIO


def test_what_the_caller_raises_ends_the_write(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    counts: list[int] = []

    def wrote(count: int) -> None:
        counts.append(count)
        if len(counts) >= 2:
            raise EnoughError

    memory = arena(64 * BLOCK)
    path = str(tmp_path / "file")
    with pytest.raises(EnoughError):
        write_image(path, memory, Image("file", 0, 64 * BLOCK), BLOCK, wrote, WriteOptions(2))
    assert len(counts) <= 4
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_callers_is_not_renamed(tmp_path: Path) -> None:
    def wrote(count: int) -> None:
        raise BrokenPipeError(errno.EPIPE, "gone", "mine")

    with pytest.raises(BrokenPipeError) as caught:
        write_image(str(tmp_path / "file"), arena(BLOCK), Image("file", 0, 9), BLOCK, wrote)
    assert caught.value.filename == "mine"


def test_blocks_are_written_at_the_same_time(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=30)

    class Meeting(Files):
        def write(self, fd: int, data: memoryview, offset: int) -> int:
            both.wait()
            return super().write(fd, data, offset)

    write(tmp_path / "file", arena(2 * BLOCK), Image("file", 0, 2 * BLOCK), Meeting(), threads=2)


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        write(tmp_path / "link", arena(BLOCK), Image("link", 0, 9))
    assert not (tmp_path / "elsewhere").exists()
