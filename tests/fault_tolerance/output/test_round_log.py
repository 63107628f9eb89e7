import errno
import os
import threading
import time

import pytest

from undaunted.fault_tolerance.output import round_log
from undaunted.fault_tolerance.output.round_log import RoundLog, Source
from undaunted.logs import growth as growth_module
from undaunted.logs import log_file

DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(round_log, "_RETRY_S", 0.01)
    monkeypatch.setattr(round_log, "_PATIENCE_S", 0.2)


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


def test_close_may_come_twice_and_without_start(tmp_path):
    log = RoundLog(str(tmp_path / "log"), sources(tmp_path, [0]), world_size=1)
    assert log.close(0)
    log.start()
    assert log.close(DEADLINE_S)
    assert log.close(DEADLINE_S)
