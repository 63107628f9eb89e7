"""Output of ranks on the console."""

import errno
import os
import select
import stat
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base.inotify import Inotify
from undaunted.fault_tolerance.output import console as console_module
from undaunted.fault_tolerance.output.bounded_files import BoundedFiles
from undaunted.fault_tolerance.output.tee import (
    CHUNK_BYTES,
    FileTail,
    LineAssembler,
    OutputTee,
    TeeEntry,
)
from undaunted.logs import growth as growth_module
from undaunted.logs import holes

DEADLINE_S = 60.0


class Reader:
    """The reading end of a console that is a pipe."""

    def __init__(self):
        self.fd, self.write_fd = os.pipe()
        self.data = bytearray()

    def read_until(self, marker):
        end = time.monotonic() + DEADLINE_S
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        searched = 0
        while self.data.find(marker, searched) < 0:
            searched = max(0, len(self.data) - len(marker))
            assert poller.poll((end - time.monotonic()) * 1000), (marker, self.data[-200:])
            self.data += os.read(self.fd, 1 << 20)
        return bytes(self.data)

    def read_rest(self):
        self.close_writer()
        while chunk := os.read(self.fd, 1 << 20):
            self.data += chunk
        return bytes(self.data)

    def close_writer(self):
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self):
        self.close_writer()
        os.close(self.fd)


@pytest.fixture
def reader():
    reader = Reader()
    yield reader
    reader.close()


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def entry(path, reader, prefix="[0]:"):
    return TeeEntry(str(path), prefix, reader.write_fd)


def test_lines_of_several_files_appear_with_prefixes(tmp_path, reader):
    paths = [tmp_path / "attempt_0" / str(rank) / "stdout.log" for rank in range(2)]
    tee = OutputTee([entry(p, reader, f"[{rank}]:") for rank, p in enumerate(paths)])
    tee.start()
    for path in paths:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
    append(paths[0], b"hello\n")
    reader.read_until(b"[0]:hello\n")
    append(paths[1], b"\xff\x00\nlast without end")
    reader.read_until(b"[1]:\xff\x00\n")
    assert tee.close(DEADLINE_S)
    assert reader.read_rest().endswith(b"[1]:last without end\n")
    assert tee.dropped_lines == 0
    assert tee.problems == []


def free_beginning(path, end):
    with path.open("rb+") as file:
        if not holes.free(file.fileno(), 0, end):
            pytest.skip("this file system cannot free parts of files")


def test_what_is_freed_before_it_is_read_is_counted_and_said(tmp_path):
    """Neither zeros nor parts of lines are shown; lines are shown, or their bytes are counted."""
    path = tmp_path / "stdout.log"
    tail = FileTail(str(path), b">")
    lines = [b"line %07d" % number for number in range(100_000)]
    append(path, b"\n".join(lines) + b"\n")
    size = path.stat().st_size
    shown = tail.read()
    free_beginning(path, 1 << 20)
    while (more := tail.read()) is not None:
        shown += more
    shown += tail.finish()
    tail.close()
    assert b"\0" not in shown
    got = shown.replace(b">", b"").splitlines()
    notices = [line for line in got if line.startswith(b"[undaunted]")]
    kept = [line for line in got if not line.startswith(b"[undaunted]")]
    (notice,) = notices
    assert b"%d bytes" % tail.skipped_bytes in notice
    cut = kept[got.index(notice) - 1]  # begun before the gap
    assert set(kept) - {cut} <= set(lines)
    assert kept[-1] == lines[-1]
    assert sum(len(line) + 1 for line in kept) - 1 + tail.skipped_bytes == size


def test_a_slow_reader_of_bounded_files_gets_no_zeros(tmp_path, reader, monkeypatch):
    """What the console's reader is too slow for is freed behind the tee's back."""
    monkeypatch.setattr(console_module, "STALL_S", DEADLINE_S)
    path = tmp_path / "stdout.log"
    tee = OutputTee([entry(path, reader, "")])
    bounds = BoundedFiles([str(path)], 1 << 20)
    tee.start()
    bounds.start()
    line = b"x" * 99 + b"\n"
    append(path, line * 80_000)  # 8 MB, for a pipe of 64 KiB that nobody reads
    assert bounds.close(DEADLINE_S), "it has freed the beginning"
    tee.request_close(DEADLINE_S)
    reader.read_until(b"[undaunted]")
    reading = threading.Thread(target=reader.read_until, args=(b"the end",))
    reading.start()
    assert tee.close(DEADLINE_S)
    os.write(reader.write_fd, b"the end")
    reading.join(DEADLINE_S)
    whole = [each + b"\n" for each in bytes(reader.data).splitlines() if each.startswith(b"x")]
    assert b"\0" not in reader.data
    assert len(set(whole)) <= 2, "whole lines, and the one that was begun before the gap"
    assert sum(map(len, whole)) + tee.skipped_bytes - (80_000 * len(line)) in {0, 1}
    assert any(f"{tee.skipped_bytes} bytes" in problem for problem in tee.problems)


def test_what_was_written_before_close_is_shown(tmp_path, reader):
    tee = OutputTee([entry(tmp_path / "log", reader)])
    tee.start()
    append(tmp_path / "log", b"a\n" * 1000)
    tee.close(DEADLINE_S)
    assert reader.read_rest() == b"[0]:a\n" * 1000


@pytest.mark.parametrize("broken", ["instance", "watch"])
def test_without_inotify_it_looks_at_the_clock(tmp_path, reader, monkeypatch, broken):
    def refuse(*_):
        raise OSError(errno.EMFILE, "too many")

    if broken == "instance":
        monkeypatch.setattr(growth_module, "Inotify", refuse)
    else:
        monkeypatch.setattr(Inotify, "watch", refuse)
    monkeypatch.setattr(growth_module, "_POLL_S", 0.01)
    tee = OutputTee([entry(tmp_path / "log", reader)])
    tee.start()
    append(tmp_path / "log", b"seen\n")
    reader.read_until(b"[0]:seen\n")
    assert tee.close(DEADLINE_S)


def test_burst_arrives_complete_and_in_order(tmp_path, reader):
    count = 100_000
    tee = OutputTee([entry(tmp_path / "log", reader, "")])
    tee.start()
    lines = b"".join(b"line %06d of a burst\n" % i for i in range(count))
    append(tmp_path / "log", lines)
    reader.read_until(b"line %06d of" % (count - 1))
    tee.close(DEADLINE_S)
    assert reader.read_rest() == lines


def test_stalled_reader_drops_whole_lines_and_is_told_how_many(tmp_path, reader, monkeypatch):
    monkeypatch.setattr(console_module, "STALL_S", 0.01)
    tee = OutputTee([entry(tmp_path / "log", reader)])
    tee.start()
    lines = 50_000
    append(tmp_path / "log", b"x" * 20 + b"\n" * 1 + (b"y" * 20 + b"\n") * (lines - 1))
    wait_for(lambda: tee.dropped_lines > 0)
    reader.read_until(b"lines were not shown")
    append(tmp_path / "log", b"back again\n")
    reader.read_until(b"back again\n")
    assert tee.close(DEADLINE_S)
    data = reader.read_rest()
    shown = [line for line in data.splitlines() if line.startswith(b"[0]:") and b"back" not in line]
    assert set(shown) <= {b"[0]:" + b"x" * 20, b"[0]:" + b"y" * 20}
    assert tee.dropped_lines == lines - len(shown)
    told = [int(line.split()[7]) for line in data.splitlines() if line.startswith(b"[undaunted]")]
    assert sum(told) == tee.dropped_lines


def test_close_is_bounded_when_nobody_reads(tmp_path, reader):
    tee = OutputTee([entry(tmp_path / "log", reader)])
    tee.start()
    append(tmp_path / "log", b"x" * 100 + b"\n")
    reader.read_until(b"x\n")
    append(tmp_path / "log", (b"x" * 100 + b"\n") * 20_000)
    began = time.monotonic()
    assert tee.close(0.05)
    assert time.monotonic() - began < DEADLINE_S / 2
    assert tee.dropped_lines + tee.unread_bytes > 0
    assert "were not shown" in tee.problems[0]


def test_line_of_many_megabytes(tmp_path, reader):
    size = 8 << 20
    consumed = threading.Event()
    seen = []

    def consume():
        seen.append(reader.read_until(b"after\n"))
        consumed.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    tee = OutputTee([entry(tmp_path / "log", reader, "")])
    tee.start()
    append(tmp_path / "log", b"z" * size + b"\nafter\n")
    assert consumed.wait(DEADLINE_S)
    consumer.join()
    assert tee.close(DEADLINE_S)
    assert seen[0].count(b"z") == size


def test_reader_that_went_away_is_forgotten(tmp_path, reader):
    other = Reader()
    tee = OutputTee([entry(tmp_path / "a", other), entry(tmp_path / "b", reader)])
    tee.start()
    os.close(other.fd)
    append(tmp_path / "a", b"nobody\n")
    append(tmp_path / "b", b"somebody\n")
    reader.read_until(b"[0]:somebody\n")
    assert tee.close(DEADLINE_S)
    other.close_writer()
    assert tee.dropped_lines == 1


def test_file_that_cannot_be_followed_is_named(tmp_path, reader):
    (tmp_path / "file").write_text("")
    tee = OutputTee([entry(tmp_path / "file" / "x", reader), entry(tmp_path / "ok", reader)])
    tee.start()
    append(tmp_path / "ok", b"fine\n")
    reader.read_until(b"fine\n")
    assert tee.close(DEADLINE_S)
    assert "file/x is not shown: Not a directory" in tee.problems[0]


def test_nothing_to_follow_needs_no_thread():
    tee = OutputTee([])
    tee.start()
    assert tee.close(0)


def test_close_may_come_twice_and_without_start(tmp_path, reader):
    tee = OutputTee([entry(tmp_path / "log", reader)])
    assert tee.close(0)
    tee.start()
    tee.request_close(DEADLINE_S)
    assert tee.close(DEADLINE_S)
    assert tee.close(DEADLINE_S)


def test_a_start_after_the_close_follows_nothing(tmp_path, reader):
    tee = OutputTee([entry(tmp_path / "log", reader)])
    tee.request_close(DEADLINE_S)
    assert tee.close(DEADLINE_S)
    tee.start()
    assert "undaunted-tee" not in [thread.name for thread in threading.enumerate()]


def test_a_disk_that_answers_only_after_the_close_leaves_nothing_behind(tmp_path, reader):
    """The thread, what it has open and its inotify are given back by the late start itself."""
    tee = OutputTee([entry(tmp_path / "log", reader)])
    opened, answers = threading.Event(), threading.Event()
    really = tee._open

    def hangs(growth):
        opened.set()
        assert answers.wait(DEADLINE_S)
        really(growth)

    tee._open = hangs
    starting = threading.Thread(target=tee.start)
    starting.start()
    assert opened.wait(DEADLINE_S)
    assert tee.close(0.0)
    answers.set()
    starting.join(DEADLINE_S)
    assert not starting.is_alive()
    assert "undaunted-tee" not in [thread.name for thread in threading.enumerate()]


def wait_for(condition):
    """Wait for a counter of the tee's thread, which announces nothing."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def test_lines_get_prefixes_and_wait_for_their_end():
    lines = LineAssembler(b"[0]:")
    assert lines.feed(b"a\nb\nc") == b"[0]:a\n[0]:b\n"
    assert lines.feed(b"") == b""
    assert lines.feed(b"d") == b""
    assert lines.feed(b"\n\n") == b"[0]:cd\n[0]:\n"
    assert lines.finish() == b""
    assert lines.feed(b"tail") == b""
    assert lines.finish() == b"[0]:tail\n"


def test_carriage_return_ends_a_line():
    lines = LineAssembler(b">")
    assert lines.feed(b"10%\r20%\r") == b">10%\n>20%\n"
    assert lines.feed(b"\nx\r\ny\n") == b">x\n>y\n"


def test_a_line_without_end_comes_in_pieces():
    lines = LineAssembler(b">")
    out = b"".join(lines.feed(b"x" * CHUNK_BYTES) for _ in range(20)) + lines.finish()
    assert out.replace(b">", b"").replace(b"\n", b"") == b"x" * (20 * CHUNK_BYTES)
    assert max(map(len, out.split(b"\n"))) <= 2 * CHUNK_BYTES + 1


@given(st.lists(st.binary(max_size=20)))
def test_bytes_are_passed_through_however_they_are_cut(pieces):
    lines = LineAssembler(b"")
    out = b"".join(lines.feed(piece) for piece in pieces) + lines.finish()
    whole = b"".join(pieces).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert out == whole + (b"\n" if whole and not whole.endswith(b"\n") else b"")


def test_file_tail_creates_a_private_file_and_begins_at_its_end(tmp_path):
    path = tmp_path / "stdout.log"
    tail = FileTail(str(path), b">")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert tail.read() is None
    path.write_bytes(b"old\nbegun")
    assert tail.read() == b">old\n"
    assert tail.unread_bytes() == 0
    tail.close()
    later = FileTail(str(path), b">")
    with path.open("ab") as file:
        file.write(b"new\n")
    assert later.unread_bytes() == 4
    assert later.read() == b">new\n"
    later.close()


def test_file_tail_follows_no_link(tmp_path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic"):
        FileTail(str(tmp_path / "link"), b"")
