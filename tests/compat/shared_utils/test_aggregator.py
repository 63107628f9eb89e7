import errno
import logging
import os
import threading
import time

import pytest

from nvidia_resiliency_ext.shared_utils._messages import aggregator as aggregator_module
from nvidia_resiliency_ext.shared_utils._messages.aggregator import Aggregator, InUseError
from nvidia_resiliency_ext.shared_utils._messages.files import MessageFiles
from undaunted.fault_tolerance.output import log_file
from undaunted.fault_tolerance.output.stamps import stamp

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(aggregator_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(aggregator_module, "_BATCH_S", 0.001)


@pytest.fixture
def places(tmp_path):
    (tmp_path / "messages").mkdir(mode=0o700)
    return str(tmp_path / "messages"), tmp_path / "node.log"


def line(seconds, text):
    return f"{stamp(seconds)} {text}\n"


def write(directory, name, text):
    with open(f"{directory}/{name}", "a") as file:  # noqa: PTH123
        file.write(text)


def aggregate(directory, log, hold_s=0.0):
    aggregator = Aggregator(directory, str(log), hold_s)
    aggregator.start()
    assert aggregator.close(DEADLINE_S)
    return aggregator.problems


def wait_for(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def test_what_is_there_is_put_in_order(places):
    directory, log = places
    write(directory, "rank_0_1.msg.5", line(10, "a") + line(30, "c") + "  rest of c\n")
    write(directory, "ft_rank_1_2.msg.4", line(20, "b") + line(40, "d") + "begun")
    write(directory, "other", line(1, "no message"))
    assert aggregate(directory, log) == []
    expected = line(10, "a") + line(20, "b") + line(30, "c") + "  rest of c\n" + line(40, "d")
    assert log.read_text() == expected
    assert log.stat().st_mode & 0o777 == 0o600


def test_messages_arrive_while_it_runs(places):
    directory, log = places
    aggregator = Aggregator(directory, str(log), hold_s=0.001)
    aggregator.start()
    for number in range(3):
        write(directory, f"rank_{number % 2}_1.msg.5", line(number, "x"))
        wait_for(lambda n=number: log.read_text() == "".join(line(i, "x") for i in range(n + 1)))
    assert aggregator.close(DEADLINE_S)
    assert aggregator.problems == []


def test_a_successor_goes_on_where_the_first_one_was(places):
    directory, log = places
    write(directory, "rank_0_1.msg.5", line(10, "a"))
    aggregate(directory, log)
    write(directory, "rank_0_1.msg.5", line(20, "b"))
    write(directory, "rank_0_1.msg.6", line(30, "c"))
    aggregate(directory, log)
    assert log.read_text() == line(10, "a") + line(20, "b") + line(30, "c")
    other = log.with_name("other.log")
    aggregate(directory, other)
    assert other.read_text() == ""


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"rank_0_1.msg.5": "x"}', '{"rank_0_1.msg.5": []}']
)
def test_damaged_positions_count_as_none(places, content):
    directory, log = places
    write(directory, ".aggregated.json", content)
    write(directory, "rank_0_1.msg.5", line(10, "a"))
    assert aggregate(directory, log) == []
    assert log.read_text() == line(10, "a")


def test_only_one_has_a_directory(places):
    directory, log = places
    first = Aggregator(directory, str(log))
    first.start()
    with pytest.raises(InUseError, match=f"another aggregator is at work on {directory}"):
        Aggregator(directory, str(log)).start()
    assert first.close(DEADLINE_S)
    aggregate(directory, log)


def test_files_that_rotate_fast_are_complete(places):
    directory, log = places
    aggregator = Aggregator(directory, str(log), hold_s=0.0)
    aggregator.start()
    files = MessageFiles(directory, "rank_0", max_bytes=500, max_files=2)
    for number in range(200):
        record = logging.LogRecord("n", logging.INFO, "f", 1, line(number, "x"), None, None)
        files.handle(record)
        if number % 10 == 9:  # the aggregator is never further behind than the files that are kept
            wait_for(lambda n=number: log.read_text().endswith(line(n, "x")))
    files.close()
    assert aggregator.close(DEADLINE_S)
    assert log.read_text() == "".join(line(number, "x") for number in range(200))
    assert len([name for name in os.listdir(directory) if "msg" in name]) == 2


class Disk:
    """Stands between the log and the disk."""

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


def test_a_full_disk_delays_and_loses_nothing(places, monkeypatch):
    directory, log = places
    disk = Disk(monkeypatch)
    disk.full.set()
    aggregator = Aggregator(directory, str(log), hold_s=0.0)
    aggregator.start()
    write(directory, "rank_0_1.msg.5", line(10, "a"))
    assert disk.refused.wait(DEADLINE_S)
    write(directory, "rank_0_1.msg.5", line(20, "b"))
    disk.full.clear()
    wait_for(lambda: log.read_text() == line(10, "a") + line(20, "b"))
    assert aggregator.close(DEADLINE_S)
    assert aggregator.problems == []


def test_a_disk_that_stays_full_is_said_and_left_to_a_successor(places, monkeypatch):
    directory, log = places
    disk = Disk(monkeypatch)
    disk.full.set()
    write(directory, "rank_0_1.msg.5", line(10, "a"))
    assert aggregate(directory, log) == [f"{log} is incomplete: No space left on device"]
    disk.full.clear()
    assert aggregate(directory, log) == []
    assert log.read_text() == line(10, "a")


def test_places_that_cannot_be_used(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Aggregator(str(tmp_path / "file"), str(tmp_path / "log")).start()
    with pytest.raises(NotADirectoryError):
        Aggregator(str(tmp_path / "new"), str(tmp_path / "file" / "log")).start()
    assert Aggregator(str(tmp_path / "new"), str(tmp_path / "log")).close(0)
