import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undaunted.fault_tolerance.output import line_copy
from undaunted.fault_tolerance.output.line_copy import LineCopy
from undaunted.logs.log_file import LogFile


class Pair:
    """A rank's file, and the log its lines are copied to."""

    def __init__(self, directory, *, keeps=lambda lines: lines, reclaim=False):
        self.source = directory / "source"
        self.source.touch()
        self.log = LogFile(str(directory / "log"))
        self.copy = LineCopy(str(self.source), b"7: ", keeps, reclaim=reclaim)
        self.writer = self.source.open("ab", buffering=0)

    def copy_all(self, *, finish=False):
        while self.copy.step(self.log) or (finish and self.copy.finish(self.log)):
            pass
        return (self.source.parent / "log").read_bytes()

    def close(self):
        self.copy.close()
        self.log.close()
        self.writer.close()


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def test_lines_get_prefixes_and_wait_for_their_end(pair):
    pair.writer.write(b"a\n\nbe")
    assert pair.copy_all() == b"7: a\n7: \n"
    pair.writer.write(b"gun")
    assert pair.copy_all() == b"7: a\n7: \n"
    pair.writer.write(b" here\nc")
    assert pair.copy_all() == b"7: a\n7: \n7: begun here\n"
    assert pair.copy.unread_bytes() == 1
    assert pair.copy_all(finish=True).endswith(b"\n7: c\n")
    assert pair.copy.unread_bytes() == 0


def test_what_is_in_the_file_already_is_not_copied(tmp_path):
    (tmp_path / "source").write_bytes(b"old\n")
    pair = Pair(tmp_path)
    pair.writer.write(b"new\n")
    assert pair.copy_all() == b"7: new\n"
    pair.close()


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
def test_a_long_line_stays_one_line(pair, end):
    long = os.urandom(3 * line_copy.CHUNK_BYTES).replace(b"\n", b"")
    pair.writer.write(b"short\n" + long + end)
    assert pair.copy_all(finish=True) == (
        b"7: short\n7: " + long + b"\n" + (b"7: next\n" if b"next" in end else b"")
    )


def test_a_long_line_is_copied_in_pieces_and_says_so(pair):
    pair.writer.write(b"x" * (2 * line_copy.CHUNK_BYTES) + b"\n")
    in_line = []
    while pair.copy.step(pair.log):
        in_line.append(pair.copy.in_line)
    assert in_line == [False, False, True, True, True, False]


def test_filter_sees_whole_lines_and_what_it_drops_is_gone(tmp_path):
    seen = []

    def keeps(lines):
        seen.append(lines)
        return lines.replace(b"secret\n", b"")

    pair = Pair(tmp_path, keeps=keeps)
    pair.writer.write(b"a\nsecret\nsec")
    pair.copy_all()
    pair.writer.write(b"ret\nsecret")
    assert pair.copy_all(finish=True) == b"7: a\n"
    assert seen == [b"a\nsecret\n", b"secret\n", b"secret\n"]
    pair.close()


def test_file_that_cannot_be_read_has_nothing_new(pair, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "broken")

    pair.writer.write(b"line\n")
    monkeypatch.setattr(os, "pread", broken)
    assert pair.copy.step(pair.log) == 0
    assert pair.copy.unread_bytes() == 5


@pytest.mark.parametrize("reclaim", [True, False])
def test_disk_space_of_temporary_files_is_freed(tmp_path, monkeypatch, reclaim):
    monkeypatch.setattr(line_copy, "RECLAIM_BYTES", 1 << 20)
    pair = Pair(tmp_path, reclaim=reclaim)
    pair.writer.write(b"x" * 99 + b"\n")
    for _ in range(16):
        pair.writer.write((b"y" * 99 + b"\n") * 5000)
        pair.copy_all()
    status = pair.source.stat()
    assert status.st_size == 100 + 16 * 500_000
    kept = line_copy.KEEP_BYTES
    freed = status.st_blocks * 512 < kept + (2 << 20)
    if reclaim and not freed:
        pytest.skip("this file system cannot free parts of files")
    assert freed is reclaim
    with pair.source.open("rb") as file:
        file.seek(-kept + 4096, os.SEEK_END)
        assert b"\0" not in file.read()
    assert len(pair.copy_all()) == 103 * (1 + 16 * 5000)
    pair.close()


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\n\n", b"d" * 9, b"\0\xff\r"])))
def test_nothing_is_lost_however_it_is_cut(tmp_path_factory, pieces):
    directory = tmp_path_factory.mktemp("copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_copy, "CHUNK_BYTES", 4)
        pair = Pair(directory)
        for piece in pieces:
            pair.writer.write(piece)
            pair.copy_all()
        result = pair.copy_all(finish=True)
        pair.close()
    whole = b"".join(pieces)
    lines = whole.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    assert result == b"".join(b"7: " + line + b"\n" for line in lines)


@pytest.mark.parametrize("kept", [True, False])
def test_a_long_line_is_judged_by_its_beginning(tmp_path, kept):
    seen = []

    def keeps(lines):
        seen.append(lines)
        return lines if kept or len(lines) < 10 else b""

    pair = Pair(tmp_path, keeps=keeps)
    line = b"x" * (2 * line_copy.CHUNK_BYTES) + b"\n"
    pair.writer.write(b"a\n" + line + b"b\n" + line[:-1])
    content = pair.copy_all(finish=True)
    pair.close()
    long = b"7: " + line if kept else b""
    assert content == b"7: a\n" + long + b"7: b\n" + long
    assert max(map(len, seen)) <= line_copy.CHUNK_BYTES + 1
