"""What holds for files that are followed, whatever sink their lines go to."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fault_tolerance.output.following import (
    DEADLINE_S,
    KINDS,
    Place,
    append,
    content_of,
    place,
    skip_unless_parts_can_be_freed,
    wait_for,
)
from undaunted.base.inotify import Inotify
from undaunted.fault_tolerance.output import console as console_module
from undaunted.fault_tolerance.output import follower as module
from undaunted.fault_tolerance.output import growth as growth_module
from undaunted.fault_tolerance.output import log_file
from undaunted.fault_tolerance.output.console import Console
from undaunted.fault_tolerance.output.follower import Follower
from undaunted.fault_tolerance.output.line_copy import LineCopy
from undaunted.fault_tolerance.output.log_file import LogFile
from undaunted.fault_tolerance.output.rank_file import RankFile
from undaunted.fault_tolerance.output.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=KINDS)
def arrival(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place(request.param, tmp_path) as arrival:
        yield arrival


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine nothing is given up that is only slow."""
    for name in ("_PATIENCE_S", "_LATE_S"):
        monkeypatch.setattr(module, name, DEADLINE_S)
    monkeypatch.setattr(console_module, "STALL_S", DEADLINE_S)
    monkeypatch.setattr(module, "_RETRY_S", 0.01)


def copy(path: Path, prefix: bytes = b"", **options: bool) -> LineCopy:
    return LineCopy(RankFile(str(path)), prefix, **options)


def test_lines_of_several_files_arrive_with_prefixes(arrival: Place, tmp_path: Path) -> None:
    paths = [tmp_path / "attempt_0" / str(rank) / "stdout.log" for rank in range(2)]
    copies = [copy(path, b"%d: " % rank) for rank, path in enumerate(paths)]
    with arrival.followed(*copies) as follower:
        for path in paths:
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
        append(paths[0], b"hello\n")
        wait_for(lambda: b"0: hello\n" in arrival.content())
        append(paths[1], b"\xff\x00\nlast without end")
        wait_for(lambda: b"1: \xff\x00\n" in arrival.content())
    assert follower.problems == []
    wait_for(lambda: arrival.content().endswith(b"1: last without end\n"))


def test_a_file_begins_at_its_present_end(arrival: Place, tmp_path: Path) -> None:
    append(tmp_path / "file", b"old\n")
    with arrival.followed(copy(tmp_path / "file", b"> ")):
        append(tmp_path / "file", b"new\n")
    wait_for(lambda: arrival.content() == b"> new\n")


def test_a_burst_before_the_end_arrives_complete_and_in_order(
    arrival: Place, tmp_path: Path
) -> None:
    lines = b"".join(b"line %06d of a burst\n" % number for number in range(100_000))
    with arrival.followed(copy(tmp_path / "file")):
        append(tmp_path / "file", lines)
    wait_for(lambda: len(arrival.content()) == len(lines))
    assert arrival.content() == lines


def test_every_byte_of_a_long_line_arrives(arrival: Place, tmp_path: Path) -> None:
    with arrival.followed(copy(tmp_path / "file")):
        append(tmp_path / "file", b"z" * (3 << 20) + b"\nafter\n")
    wait_for(lambda: arrival.content().endswith(b"\nafter\n"))
    assert arrival.content().count(b"z") == 3 << 20


@pytest.mark.parametrize("broken", ["instance", "watch"])
def test_without_inotify_it_looks_at_the_clock(
    arrival: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    if broken == "instance":
        monkeypatch.setattr(growth_module, "Inotify", refuse)
    else:
        monkeypatch.setattr(Inotify, "watch", refuse)
    monkeypatch.setattr(growth_module, "_POLL_S", 0.01)
    with arrival.followed(copy(tmp_path / "file")):
        append(tmp_path / "file", b"seen\n")
        wait_for(lambda: arrival.content() == b"seen\n")


def test_a_file_that_cannot_be_followed_is_named_and_others_are_followed(
    arrival: Place, tmp_path: Path
) -> None:
    (tmp_path / "no").touch()
    (tmp_path / "link").symlink_to("/etc/hostname")
    bad = [tmp_path / "no" / "x", tmp_path / "link"]
    with arrival.followed(*map(copy, bad), copy(tmp_path / "good")) as follower:
        append(tmp_path / "good", b"fine\n")
        wait_for(lambda: arrival.content() == b"fine\n")
    assert len(follower.problems) == len(bad)
    for path, problem in zip(bad, follower.problems, strict=True):
        assert str(path) in problem


def test_what_is_freed_before_it_is_copied_is_counted(arrival: Place, tmp_path: Path) -> None:
    """Neither zeros nor parts of lines arrive; a line does, or its bytes are counted."""
    skip_unless_parts_can_be_freed(tmp_path)
    lines = [b"line %07d" % number for number in range(100_000)]
    may_go_on, waits = threading.Event(), threading.Event()

    def slow(some: bytes) -> bytes:
        waits.set()
        assert may_go_on.wait(DEADLINE_S)
        return some

    file = RankFile(str(tmp_path / "file"))
    with arrival.followed(LineCopy(file, b"", slow)) as follower:
        append(tmp_path / "file", lines[0] + b"\n")
        assert waits.wait(DEADLINE_S)
        append(tmp_path / "file", b"\n".join(lines[1:]) + b"\n")
        file.free(1 << 20)
        may_go_on.set()
    wait_for(lambda: arrival.content().endswith(lines[-1] + b"\n"))
    assert b"\0" not in arrival.content()
    got = arrival.content().splitlines()
    (notice,) = (line for line in got if line.startswith(b"[undaunted]"))
    gone = sum(len(line) + 1 for line in lines) - sum(len(x) + 1 for x in got if x != notice)
    assert set(got) - {notice} <= set(lines)
    assert gone >= (1 << 20) - 2 * len(lines[0])
    assert b"%d bytes" % gone in notice
    assert any(f"{gone} bytes" in problem for problem in follower.problems)


def test_temporary_files_are_removed_and_no_others(arrival: Place, tmp_path: Path) -> None:
    attempt = tmp_path / "attempt_0"
    paths = [attempt / "0" / "output.log", attempt / "1" / "output.log", attempt / "1" / "mine"]
    copies = [copy(path, temporary=path.name != "mine") for path in paths]
    with arrival.followed(*copies):
        for path in paths:
            append(path, b"%s\n" % str(path).encode())
    wait_for(lambda: arrival.content().count(b"\n") == len(paths))
    assert [path for path in attempt.rglob("*") if path.is_file()] == [attempt / "1" / "mine"]


def test_close_may_come_twice_and_without_a_start(arrival: Place, tmp_path: Path) -> None:
    never = Follower("it", arrival.open_sink, [copy(tmp_path / "x")], where="/", limit_s=0)
    assert never.close()
    never.start()
    assert never.close()
    assert not (tmp_path / "x").exists()
    with arrival.followed(copy(tmp_path / "file")) as follower:
        assert follower.close()
        assert follower.close()


def test_a_disk_that_answers_only_after_the_close_leaves_nothing_behind(
    arrival: Place, tmp_path: Path
) -> None:
    """The leak checks see threads and descriptors; what ranks have printed is not lost."""
    opened, answers = threading.Event(), threading.Event()

    def hangs(follower: Follower) -> Sink:
        opened.set()
        assert answers.wait(DEADLINE_S)
        return arrival.open_sink(follower)

    part = copy(tmp_path / "file", temporary=True)
    follower = Follower("it", hangs, [part], where="/somewhere", limit_s=0)
    starting = threading.Thread(target=follower.start)
    starting.start()
    assert opened.wait(DEADLINE_S)
    assert follower.close()
    answers.set()
    starting.join(DEADLINE_S)
    wait_for(lambda: "undaunted-follower" not in [each.name for each in threading.enumerate()])
    assert follower.problems == []
    assert not (tmp_path / "file").exists()


def test_nothing_to_follow_needs_no_thread() -> None:
    follower = Follower("it", lambda _: Sink(), [], where="/", limit_s=0)
    follower.start()
    assert "undaunted-follower" not in [each.name for each in threading.enumerate()]
    assert follower.close()


def test_a_sink_that_cannot_be_opened_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    parts = [copy(tmp_path / "file", temporary=True)]
    log = Follower("it", lambda _: LogFile(f"{tmp_path}/no/log"), parts, where="/my", limit_s=0)
    log.start()
    assert log.close()
    (problem,) = log.problems
    assert "/my" in problem


class Disk:
    """Stands between logs and the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.hangs = threading.Event(), threading.Event()
        self.asked, self.answers = threading.Event(), threading.Event()
        self._writev = os.writev
        monkeypatch.setattr(log_file.os, "writev", self.write)

    def write(self, fd: int, pieces: list[bytes]) -> int:
        if self.hangs.is_set():
            self.asked.set()
            assert self.answers.wait(DEADLINE_S)
        if self.full.is_set():
            self.asked.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._writev(fd, pieces)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path, disk: Disk) -> None:
    with place("log", tmp_path) as log, log.followed(copy(tmp_path / "file")) as follower:
        disk.full.set()
        append(tmp_path / "file", b"one\ntwo\n")
        assert disk.asked.wait(DEADLINE_S)
        append(tmp_path / "file", b"three\n")
        disk.full.clear()
    assert content_of(tmp_path / "logs/log") == b"one\ntwo\nthree\n"
    assert follower.problems == []


def test_a_disk_that_stays_full_leaves_the_files_of_the_ranks(tmp_path: Path, disk: Disk) -> None:
    disk.full.set()
    part = copy(tmp_path / "file", temporary=True)
    with place("log", tmp_path) as log, log.followed(part) as follower:
        append(tmp_path / "file", b"one\n" * 1000)
    (problem,) = follower.problems
    assert os.strerror(errno.ENOSPC) in problem
    assert "/somewhere" in problem
    assert content_of(tmp_path / "file") == b"one\n" * 1000


def test_a_hanging_disk_is_not_waited_for(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    disk.hangs.set()
    with place("log", tmp_path) as log, log.followed(copy(tmp_path / "file")) as follower:
        append(tmp_path / "file", b"one\n")
        assert disk.asked.wait(DEADLINE_S)
        assert not follower.close()
        assert "/somewhere" in follower.problems[0]
        disk.answers.set()
    assert content_of(tmp_path / "logs/log") == b"one\n"


def test_a_reader_that_returns_is_told_how_many_lines_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_module, "STALL_S", 0.01)
    reading, writing = os.pipe()
    lines, sinks = 50_000, []

    def open_sink(follower: Follower) -> Console:
        sinks.append(Console(writing, follower.wait_for_writer, kept="in /somewhere"))
        return sinks[0]

    with Place(open_sink, lambda: b"").followed(copy(tmp_path / "file", b"> ")) as follower:
        append(tmp_path / "file", (b"y" * 20 + b"\n") * lines)
        wait_for(lambda: sinks[0].missing_lines > 0)
        data = b""
        while b"[undaunted]" not in data:
            data += os.read(reading, 1 << 20)
    os.close(writing)
    while more := os.read(reading, 1 << 20):
        data += more
    os.close(reading)
    notices = [line for line in data.splitlines() if line.startswith(b"[undaunted]")]
    shown = data.count(b"> " + b"y" * 20 + b"\n")
    assert shown + sinks[0].missing_lines == lines
    assert all(b"in /somewhere" in notice for notice in notices)
    assert f"{sinks[0].missing_lines} lines" in follower.problems[0]


def test_a_reader_that_went_away_is_forgotten(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    gone = Place(lambda follower: Console(writing, follower.wait_for_writer), lambda: b"")
    with gone.followed(copy(tmp_path / "file")) as follower:
        append(tmp_path / "file", b"nobody\n")
    os.close(writing)
    assert "1 lines" in follower.problems[0]
