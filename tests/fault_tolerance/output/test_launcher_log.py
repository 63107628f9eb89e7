import errno
import os
import re
import threading

import pytest

from undaunted.fault_tolerance.output import launcher_log
from undaunted.fault_tolerance.output.launcher_log import LauncherLog, append_last_words
from undaunted.logs import log_file

DEADLINE_S = 10.0
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z node7 "


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(launcher_log, "_RETRY_S", 0.01)


class Disk:
    """Stands between the log and the disk, which may be full, or hang until it is released."""

    def __init__(self, monkeypatch):
        self.full = threading.Event()
        self.refused = threading.Event()
        self.hangs = False
        self.released = threading.Event()
        self._writev = os.writev
        monkeypatch.setattr(log_file.os, "writev", self.write)

    def write(self, fd, pieces):
        if self.hangs:
            self.refused.set()
            self.released.wait(DEADLINE_S)
        if self.full.is_set():
            self.refused.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._writev(fd, pieces)


def test_texts_arrive_in_order_with_time_and_node(tmp_path):
    path = tmp_path / "new" / "launcher.log"
    problems = []
    log = LauncherLog(str(path), "node7", problems.append)
    log.add("[undaunted] one\n")
    log.add("Traceback\n  File\n")
    log.close(DEADLINE_S)
    expected = STAMP + r"\[undaunted\] one\n" + STAMP + r"Traceback\n  File\n"
    assert re.fullmatch(expected, path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert problems == []


def test_launchers_of_several_nodes_append_to_one_file(tmp_path):
    path = tmp_path / "launcher.log"
    for node in ("node7", "node7"):
        log = LauncherLog(str(path), node, print)
        log.add("line\n")
        log.close(DEADLINE_S)
    assert re.fullmatch(f"({STAMP}line\n){{2}}", path.read_text())


def test_a_full_disk_is_tried_again_and_said_once(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.full.set()
    problems = []
    log = LauncherLog(str(tmp_path / "log"), "node7", problems.append)
    log.add("first\n")
    assert disk.refused.wait(DEADLINE_S)
    for number in range(launcher_log._QUEUED_TEXTS + 5):
        log.add(f"{number}\n")
    disk.full.clear()
    log.close(DEADLINE_S)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].endswith(" first")
    assert lines[-2].endswith(f" {launcher_log._QUEUED_TEXTS - 1}")
    assert lines[-1].endswith(" [undaunted] 5 lines are missing here")
    assert len(problems) == 1
    assert "No space left on device; its lines are here" in problems[0]


def test_a_disk_that_stays_full_ends_the_thread(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.full.set()
    log = LauncherLog(str(tmp_path / "log"), "node7", lambda _: None)
    log.add("first\n")
    log.add("second\n")
    log.close(DEADLINE_S)
    assert not log._thread.is_alive()
    assert (tmp_path / "log").read_text() == ""


def test_a_disk_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.hangs = True
    log = LauncherLog(str(tmp_path / "log"), "node7", lambda _: None)
    log.add("first\n")
    assert disk.refused.wait(DEADLINE_S)
    for number in range(2 * launcher_log._QUEUED_TEXTS):
        log.add(f"{number}\n")
    log.close(0.01)
    disk.hangs = False
    disk.released.set()
    log._thread.join(DEADLINE_S)
    assert not log._thread.is_alive()


def test_a_file_that_cannot_be_opened_is_said(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "somewhere")
    problems = []
    log = LauncherLog(str(tmp_path / "link"), "node7", problems.append)
    log.add("line\n")
    log.close(DEADLINE_S)
    assert len(problems) == 1
    assert str(tmp_path / "link") in problems[0]
    assert not (tmp_path / "somewhere").exists()


def test_last_words(tmp_path):
    append_last_words(str(tmp_path / "log"), "node7", "gone\n")
    append_last_words(str(tmp_path / "log" / "no directory"), "node7", "gone\n")
    append_last_words("", "node7", "gone\n")
    assert re.fullmatch(STAMP + "gone\n", (tmp_path / "log").read_text())
