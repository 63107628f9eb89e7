"""From a rank's file to a sink: whole lines, once each, in order, through a filter."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undaunted.fault_tolerance.output import line_copy as module
from undaunted.fault_tolerance.output.filters import everything
from undaunted.fault_tolerance.output.line_copy import LineCopy
from undaunted.fault_tolerance.output.rank_file import RankFile
from undaunted.fault_tolerance.output.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from undaunted.fault_tolerance.output.filters import LineFilter


class Taken(Sink):
    """Keeps what it is given."""

    def __init__(self, *, live: bool, chunk_bytes: int) -> None:
        self.live, self.chunk_bytes = live, chunk_bytes
        self.data = b""

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.data += b"".join(pieces)


class Pair:
    """A rank's file, and the sink its lines are copied to."""

    def __init__(
        self,
        directory: Path,
        keeps: LineFilter = everything,
        *,
        live: bool = False,
        chunk_bytes: int = 64 * 1024,
        temporary: bool = False,
    ) -> None:
        self.source = directory / "source"
        self.sink = Taken(live=live, chunk_bytes=chunk_bytes)
        self.copy = LineCopy(RankFile(str(self.source)), b"7: ", keeps, temporary=temporary)
        self.copy.open(self.sink)
        self._writer = self.source.open("ab", buffering=0)

    def add(self, data: bytes) -> bytes:
        """Print something; return all that has arrived after it."""
        self._writer.write(data)
        while self.copy.step():
            pass
        return self.sink.data

    def finish(self) -> bytes:
        self.copy.finish()
        return self.add(b"")

    def close(self) -> None:
        self.copy.close(complete=False)
        self._writer.close()


@pytest.fixture(params=[False, True], ids=["log", "live"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, live=request.param)
    yield pair
    pair.close()


def test_lines_get_prefixes_and_wait_for_their_end(pair: Pair) -> None:
    assert pair.add(b"a\n\nbe") == b"7: a\n7: \n"
    assert pair.add(b"gun") == b"7: a\n7: \n"
    assert pair.add(b" here\nc") == b"7: a\n7: \n7: begun here\n"
    assert pair.copy.unread_bytes() == 1
    assert pair.finish().endswith(b"\n7: c\n")
    assert pair.copy.unread_bytes() == 0
    assert pair.finish().endswith(b"\n7: c\n")


def test_a_file_that_cannot_be_read_has_nothing_new(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        assert pair.add(b"line\n") == b""
        assert pair.copy.unread_bytes() == 5
    assert pair.add(b"") == b"7: line\n"


def test_a_carriage_return_ends_a_line_for_people(tmp_path: Path) -> None:
    pair = Pair(tmp_path, live=True)
    assert pair.add(b"10%\r20%\r") == b"7: 10%\n7: 20%\n"
    assert pair.add(b"\nx\r\ny\n") == b"7: 10%\n7: 20%\n7: x\n7: y\n"
    pair.close()


def test_a_carriage_return_is_any_byte_in_a_log(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    assert pair.add(b"10%\r20%\r") == b""
    assert pair.add(b"\n") == b"7: 10%\r20%\r\n"
    pair.close()


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
def test_a_long_line_stays_one_line_in_a_log(tmp_path: Path, end: bytes) -> None:
    pair = Pair(tmp_path)
    long = os.urandom(3 * pair.sink.chunk_bytes).replace(b"\n", b"")
    pair.add(b"short\n" + long + end)
    assert pair.finish() == (
        b"7: short\n7: " + long + b"\n" + (b"7: next\n" if b"next" in end else b"")
    )
    pair.close()


def test_a_long_line_is_not_begun_before_its_end_is_there(tmp_path: Path) -> None:
    pair = Pair(tmp_path, chunk_bytes=4)
    assert pair.add(b"x" * 10) == b""
    assert not pair.copy.in_line
    pair._writer.write(b"\n")
    begun = []
    while pair.copy.step():
        begun.append(pair.copy.in_line)
    assert begun == [True, True, True, False]
    assert pair.sink.data == b"7: " + b"x" * 10 + b"\n"
    pair.close()


def test_a_long_line_is_shown_to_people_in_pieces(tmp_path: Path) -> None:
    pair = Pair(tmp_path, live=True, chunk_bytes=4)
    assert pair.add(b"x" * 10) == b"7: xxxx\n7: xxxx\n"
    assert pair.add(b"\n") == b"7: xxxx\n7: xxxx\n7: xx\n"
    pair.close()


def test_a_filter_sees_whole_lines_and_what_it_drops_is_gone(tmp_path: Path) -> None:
    seen = []

    def keeps(lines: bytes) -> bytes:
        seen.append(lines)
        return lines.replace(b"secret\n", b"")

    pair = Pair(tmp_path, keeps)
    pair.add(b"a\nsecret\nsec")
    pair.add(b"ret\nsecret")
    assert pair.finish() == b"7: a\n"
    assert seen == [b"a\nsecret\n", b"secret\n", b"secret\n"]
    pair.close()


@pytest.mark.parametrize("kept", [True, False])
def test_a_long_line_is_judged_by_its_beginning(tmp_path: Path, *, kept: bool) -> None:
    seen = []

    def keeps(lines: bytes) -> bytes:
        seen.append(lines)
        return lines if kept or len(lines) < 10 else b""

    pair = Pair(tmp_path, keeps, chunk_bytes=1000)
    line = b"x" * 2500 + b"\n"
    pair.add(b"a\n" + line + b"b\n" + line[:-1])
    long = b"7: " + line if kept else b""
    assert pair.finish() == b"7: a\n" + long + b"7: b\n" + long
    assert max(map(len, seen)) <= 1001
    pair.close()


@settings(max_examples=100)
@given(
    pieces=st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\n\n", b"d" * 9, b"\0\xff\r", b"\r"])),
    live=st.booleans(),
)
def test_nothing_is_lost_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], *, live: bool
) -> None:
    pair = Pair(tmp_path_factory.mktemp("copy"), live=live, chunk_bytes=100 if live else 4)
    for piece in pieces:
        pair.add(piece)
    result = pair.finish()
    pair.close()
    whole = b"".join(pieces)
    if live:
        whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = whole.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    assert result == b"".join(b"7: " + line + b"\n" for line in lines)


@pytest.mark.parametrize("temporary", [True, False])
def test_disk_space_of_temporary_files_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, temporary: bool
) -> None:
    monkeypatch.setattr(module, "RECLAIM_BYTES", 1 << 20)
    pair = Pair(tmp_path, temporary=temporary)
    pair.add(b"x" * 99 + b"\n")
    for _ in range(16):
        pair.add((b"y" * 99 + b"\n") * 5000)
    status = pair.source.stat()
    assert status.st_size == 100 + 16 * 500_000
    freed = status.st_blocks * 512 < module.KEEP_BYTES + (2 << 20)
    if temporary and not freed:
        pytest.skip("this file system cannot free parts of files")
    assert freed is temporary
    with pair.source.open("rb") as file:
        file.seek(-module.KEEP_BYTES + 4096, os.SEEK_END)
        assert b"\0" not in file.read()
    assert len(pair.finish()) == 103 * (1 + 16 * 5000)
    pair.close()
