"""Reading past the page cache, or from it."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING

import pytest

from undaunted.checkpointing.files.direct import DirectReader, Files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SIZE = 5 * 4096 + 77


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    content = os.urandom(SIZE)
    (tmp_path / "file").write_bytes(content)
    return content


class Spy(Files):
    """Notes the flags of opens; some calls are refused."""

    def __init__(self, cached: bool, *, refuse_direct: bool = False) -> None:
        super().__init__()
        self.is_cached = cached
        self.refuse_direct = refuse_direct
        self.direct_fds: set[int] = set()
        self.direct_bytes = 0

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_DIRECT and self.refuse_direct:
            raise OSError(errno.EINVAL, "not offered")
        fd = super().open(path, flags)
        if flags & os.O_DIRECT:
            self.direct_fds.add(fd)
        return fd

    def cached(self, fd: int, offset: int, count: int) -> bool:
        return self.is_cached

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = super().read(fd, buffers, offset)
        if fd in self.direct_fds:
            self.direct_bytes += count
        return count


def read(path: Path, files: Files, offset: int = 0, count: int = SIZE) -> bytes:
    reader = DirectReader(str(path / "file"), files)
    buffer = memoryview(mmap.mmap(-1, count))
    reader.read_into(offset, buffer)
    reader.close()
    reader.close()
    return bytes(buffer)


def test_from_the_page_cache(tmp_path: Path, content: bytes) -> None:
    files = Spy(cached=True)
    assert read(tmp_path, files) == content
    assert files.direct_bytes == 0


def test_what_others_read_too_is_left_in_the_page_cache_for_them(
    tmp_path: Path, content: bytes
) -> None:
    files = Spy(cached=False)
    reader = DirectReader(str(tmp_path / "file"), files, shared=True)
    buffer = memoryview(mmap.mmap(-1, SIZE))
    reader.read_into(0, buffer)
    reader.close()
    assert bytes(buffer) == content
    assert files.direct_fds == set()


def test_past_the_page_cache_but_for_the_end(tmp_path: Path, content: bytes) -> None:
    files = Spy(cached=False)
    assert read(tmp_path, files) == content
    assert files.direct_bytes in (5 * 4096, 0)  # 0: the file system of the tests has no O_DIRECT


def test_a_file_system_without_direct_reads(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, Spy(cached=False, refuse_direct=True)) == content


@pytest.mark.parametrize("offset", [1, 4096, 5000])
def test_offsets(tmp_path: Path, content: bytes, offset: int) -> None:
    assert read(tmp_path, Spy(cached=False), offset, 4096) == content[offset : offset + 4096]
    assert read(tmp_path, Files(), offset, 4096) == content[offset : offset + 4096]


@pytest.mark.parametrize("cached", [True, False])
def test_more_buffers_than_one_call_takes(tmp_path: Path, content: bytes, cached: bool) -> None:
    reader = DirectReader(str(tmp_path / "file"), Spy(cached))
    whole = bytearray(SIZE)
    view = memoryview(whole)
    reader.fill(0, [view[at : at + 7] for at in range(0, SIZE, 7)] + [view[:0]])
    reader.close()
    assert bytes(whole) == content


def test_the_end_of_the_file(tmp_path: Path, content: bytes) -> None:
    for cached in (True, False):
        with pytest.raises(EOFError, match=f"file: ends at byte {SIZE}"):
            read(tmp_path, Spy(cached), 4096, SIZE)


class Older(Files):
    """As on a kernel before 6.5."""

    def _cached_pages(self, fd: int, offset: int, count: int) -> int | None:
        return None


@pytest.mark.parametrize("kind", [Files, Older])
def test_what_was_just_written_is_cached(tmp_path: Path, content: bytes, kind: type[Files]) -> None:
    with (tmp_path / "file").open("rb") as file:
        assert file.read() == content
        assert kind().cached(file.fileno(), 4096, SIZE - 4096)
        assert kind().cached(file.fileno(), 100, SIZE - 100)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        after = kind().cached(file.fileno(), 4096, 4096)
    assert isinstance(after, bool)  # a file system in memory keeps it


def test_a_descriptor_that_cannot_be_mapped() -> None:
    ours, theirs = os.pipe()
    assert not Files().cached(ours, 0, 4096)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("cached", [True, False])
def test_errors_name_the_path(tmp_path: Path, content: bytes, cached: bool) -> None:
    class Broken(Spy):
        def read(self, fd, buffers, offset) -> int:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match=r"Input/output error.*file") as caught:
        read(tmp_path, Broken(cached))
    assert caught.value.errno == errno.EIO


def test_a_reader_that_nobody_closes(tmp_path: Path, content: bytes) -> None:
    DirectReader(str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError):
        DirectReader(str(tmp_path / "missing"))
