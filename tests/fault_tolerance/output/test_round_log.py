"""The log of a round: every line once, in order, through a filter."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undaunted.fault_tolerance.output import round_log
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.fault_tolerance.output.round_log import (
    ContainsFilter,
    DeviceListFilter,
    LineCopy,
    RoundLog,
    Source,
)
from undaunted.logs import growth as growth_module
from undaunted.logs import holes, log_file
from undaunted.logs.log_file import LogFile

DEADLINE_S = 60.0
DEVICES = b"""\
Character devices:
  1 mem
195 nvidia
195 nvidiactl
511 nvidia-uvm

Block devices:
  7 loop
259 blkext
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(round_log, "_RETRY_S", 0.01)


def sources(directory, ranks, *, temporary=True):
    return [
        Source(str(directory / "attempt_0" / str(n) / "output.log"), rank, temporary)
        for n, rank in enumerate(ranks)
    ]


def append(source, data):
    with open(source.path, "ab") as file:  # noqa: PTH123
        file.write(data)


def wait_for(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def lines_of(content, rank):
    prefix = b"%2d: " % rank
    lines = content.splitlines(keepends=True)
    return b"".join(line[len(prefix) :] for line in lines if line.startswith(prefix))


def test_lines_of_all_ranks_in_one_file(tmp_path):
    files = sources(tmp_path, [8, 9, 10])
    log = RoundLog(str(tmp_path / "logs" / "train_cycle0.log"), files, world_size=16)
    log.start()
    for source in files:
        append(source, b"rank %d\nsecond\nunended" % source.rank)
    path = tmp_path / "logs" / "train_cycle0.log"
    wait_for(lambda: path.stat().st_size >= 3 * len(b" 8: rank 8\n 8: second\n"))
    assert log.close(DEADLINE_S)
    content = path.read_bytes()
    for rank in (8, 9, 10):
        assert lines_of(content, rank) == b"rank %d\nsecond\nunended\n" % rank
    assert log.problems == []
    assert not (tmp_path / "attempt_0").exists()


def test_files_that_were_asked_for_stay(tmp_path):
    (wanted,) = sources(tmp_path, [0], temporary=False)
    temporary = Source(str(tmp_path / "attempt_0" / "0" / "stderr.log"), 0, temporary=True)
    log = RoundLog(str(tmp_path / "log"), [wanted, temporary], world_size=1)
    log.start()
    append(wanted, b"out\n")
    append(temporary, b"err\n")
    assert log.close(DEADLINE_S)
    assert sorted((tmp_path / "log").read_bytes().splitlines()) == [b"0: err", b"0: out"]
    assert [path.name for path in (tmp_path / "attempt_0" / "0").iterdir()] == ["output.log"]


def test_a_long_line_is_not_mixed_with_others(tmp_path):
    files = sources(tmp_path, [0, 1])
    log = RoundLog(str(tmp_path / "log"), files, world_size=2)
    log.start()
    append(files[0], b"x" * (3 << 20))
    for number in range(50):
        append(files[1], b"line %d\n" % number)
    append(files[0], b"\nafter\n")
    assert log.close(DEADLINE_S)
    content = (tmp_path / "log").read_bytes()
    assert b"0: " + b"x" * (3 << 20) + b"\n" in content
    assert content.count(b"\n") == 52


def test_without_inotify_it_looks_at_the_clock(tmp_path, monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(growth_module, "Inotify", refuse)
    monkeypatch.setattr(growth_module, "_POLL_S", 0.01)
    (source,) = sources(tmp_path, [0])
    log = RoundLog(str(tmp_path / "log"), [source], world_size=1)
    log.start()
    append(source, b"seen\n")
    wait_for(lambda: (tmp_path / "log").read_bytes() == b"0: seen\n")
    assert log.close(DEADLINE_S)


class Disk:
    """Stands between logs and the disk."""

    def __init__(self, monkeypatch):
        self.full = threading.Event()
        self.refused = threading.Event()
        self._writev = os.writev
        monkeypatch.setattr(log_file.os, "writev", self.write)

    def write(self, fd, pieces):
        if self.full.is_set():
            self.refused.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._writev(fd, pieces)


def test_a_full_disk_delays_and_loses_nothing(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    (source,) = sources(tmp_path, [0])
    log = RoundLog(str(tmp_path / "log"), [source], world_size=1)
    log.start()
    disk.full.set()
    append(source, b"one\ntwo\n")
    assert disk.refused.wait(DEADLINE_S)
    append(source, b"three\n")
    disk.full.clear()
    assert log.close(DEADLINE_S)
    assert (tmp_path / "log").read_bytes() == b"0: one\n0: two\n0: three\n"
    assert log.problems == []


def test_a_disk_that_stays_full_leaves_the_files_of_the_ranks(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.full.set()
    (source,) = sources(tmp_path, [0])
    log = RoundLog(str(tmp_path / "log"), [source], world_size=1)
    log.start()
    append(source, b"one\n" * 1000)
    assert log.close(DEADLINE_S)
    assert "No space left on device" in log.problems[0]
    assert str(tmp_path / "attempt_0") in log.problems[0]
    with open(source.path, "rb") as file:  # noqa: PTH123
        assert file.read() == b"one\n" * 1000


def test_a_log_that_cannot_be_opened_disturbs_nobody(tmp_path):
    (tmp_path / "file").touch()
    (source,) = sources(tmp_path, [0])
    log = RoundLog(str(tmp_path / "file" / "log"), [source], world_size=1)
    log.start()
    assert log.close(0)
    assert "Not a directory" in log.problems[0]


def test_a_hanging_disk_is_not_waited_for(tmp_path, monkeypatch):
    released = threading.Event()
    writev = os.writev

    def hang(fd, pieces):
        released.wait(DEADLINE_S)
        return writev(fd, pieces)

    monkeypatch.setattr(log_file.os, "writev", hang)
    monkeypatch.setattr(round_log, "_PATIENCE_S", 0.2)
    (source,) = sources(tmp_path, [0])
    log = RoundLog(str(tmp_path / "log"), [source], world_size=1)
    log.start()
    append(source, b"one\n")
    began = time.monotonic()
    assert not log.close(DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S / 2
    assert "in time" in log.problems[0]
    released.set()
    assert log.close(DEADLINE_S)


def test_a_disk_that_answers_only_after_the_close_leaves_nothing_behind(tmp_path):
    """The late start itself gives back what it has opened, and removes the temporary files."""
    opened, answers = threading.Event(), threading.Event()

    def hangs(path, missing):
        opened.set()
        assert answers.wait(DEADLINE_S)
        return open_here(path, missing)

    (source,) = sources(tmp_path, [0])
    log = RoundLog(str(tmp_path / "log"), [source], world_size=1, open_log=hangs)
    starting = threading.Thread(target=log.start)
    starting.start()
    assert opened.wait(DEADLINE_S)
    assert log.close(0.0)
    answers.set()
    starting.join(DEADLINE_S)
    assert not starting.is_alive()
    assert log.problems == []
    assert not Path(source.path).exists(), "it was temporary"


def test_files_that_cannot_be_opened_leave_nothing_behind(tmp_path):
    (tmp_path / "file").touch()
    source = Source(str(tmp_path / "file" / "x"), 0, temporary=False)
    log = RoundLog(str(tmp_path / "log"), [source], world_size=1)
    log.start()
    assert log.close(0)
    assert "Not a directory" in log.problems[0]


def test_close_may_come_twice_and_without_start(tmp_path):
    log = RoundLog(str(tmp_path / "log"), sources(tmp_path, [0]), world_size=1)
    assert log.close(0)
    log.start()
    assert log.close(DEADLINE_S)
    assert log.close(DEADLINE_S)


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


def test_what_was_freed_before_it_is_copied_is_skipped_and_counted(tmp_path):
    """Another thread frees the beginning of a file that somebody asked for."""
    path, log_path = tmp_path / "stdout.log", tmp_path / "log"
    source = Source(str(path), 0, temporary=False, prefix="")
    lines = [b"line %07d\n" % number for number in range(200_000)]
    released = threading.Event()

    def slow(lines):
        assert released.wait(DEADLINE_S)
        return lines

    log = RoundLog(str(log_path), [source], 1, make_filter=lambda: slow)
    log.start()
    append(source, b"".join(lines))
    with path.open("rb+") as file:
        if not holes.free(file.fileno(), 0, 1 << 20):
            pytest.skip("this file system cannot free parts of files")
    released.set()
    assert log.close(DEADLINE_S)
    copied = log_path.read_bytes()
    assert b"\0" not in copied
    assert set(copied.splitlines(keepends=True)) <= set(lines)
    gone = path.stat().st_size - len(copied)
    assert gone > 0
    assert any(f"{gone} bytes" in problem for problem in log.problems)


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
def test_a_long_line_stays_one_line(pair, end):
    long = os.urandom(3 * round_log.CHUNK_BYTES).replace(b"\n", b"")
    pair.writer.write(b"short\n" + long + end)
    assert pair.copy_all(finish=True) == (
        b"7: short\n7: " + long + b"\n" + (b"7: next\n" if b"next" in end else b"")
    )


def test_a_long_line_is_copied_in_pieces_and_says_so(pair):
    pair.writer.write(b"x" * (2 * round_log.CHUNK_BYTES) + b"\n")
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
    monkeypatch.setattr(round_log, "RECLAIM_BYTES", 1 << 20)
    pair = Pair(tmp_path, reclaim=reclaim)
    pair.writer.write(b"x" * 99 + b"\n")
    for _ in range(16):
        pair.writer.write((b"y" * 99 + b"\n") * 5000)
        pair.copy_all()
    status = pair.source.stat()
    assert status.st_size == 100 + 16 * 500_000
    kept = round_log.KEEP_BYTES
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
        patch.setattr(round_log, "CHUNK_BYTES", 4)
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
    line = b"x" * (2 * round_log.CHUNK_BYTES) + b"\n"
    pair.writer.write(b"a\n" + line + b"b\n" + line[:-1])
    content = pair.copy_all(finish=True)
    pair.close()
    long = b"7: " + line if kept else b""
    assert content == b"7: a\n" + long + b"7: b\n" + long
    assert max(map(len, seen)) <= round_log.CHUNK_BYTES + 1


def test_copy_of_proc_devices_is_dropped():
    keeps = DeviceListFilter()
    assert keeps(b"before\n" + DEVICES + b"after 1\n  7 loop\n") == b"before\nafter 1\n  7 loop\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_it_may_come_in_any_pieces_of_whole_lines(size):
    keeps = DeviceListFilter()
    lines = (b"before\n" + DEVICES + b"after\n").splitlines(keepends=True)
    pieces = [b"".join(lines[i : i + size]) for i in range(0, len(lines), size)]
    assert b"".join(map(keeps, pieces)) == b"before\nafter\n"


def test_lines_of_nvidia_devices_are_dropped_wherever_they_are():
    keeps = DeviceListFilter()
    assert keeps(b"195 nvidia-caps\nrank 195 nvidia card\n") == b"rank 195 nvidia card\n"


@given(st.lists(st.binary().map(lambda text: text.replace(b"\n", b"") + b"\n")))
def test_other_lines_are_kept(lines):
    data = b"".join(lines)
    if b"devices:" not in data and b"nvidia" not in data:
        assert DeviceListFilter()(data) == data


def test_lines_that_contain_one_of_the_texts():
    keeps = ContainsFilter(["loss", "a.b"])
    assert keeps(b"one\nloss 1\nxa.by\naxb\n\xff loss\r!\n") == b"loss 1\nxa.by\n\xff loss\r!\n"
    assert keeps(b"nothing\n") == b""
