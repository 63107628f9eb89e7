"""The writer never blocks or raises, whatever the disk does, and counts what it loses."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.journal.faulty import FaultyFiles
from undaunted.journal import events as e
from undaunted.journal import writer as writer_module
from undaunted.journal.events import (
    Event,
    EventsLost,
    JobEnded,
    JobStarted,
    JournalOpened,
    RankEvent,
    RoundStopped,
)
from undaunted.journal.lines import MAX_LINE
from undaunted.journal.reader import read_journal
from undaunted.journal.writer import JournalWriter, append_last

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 60.0


class FixedClock:
    def time(self) -> float:
        return 1000.0

    def monotonic_ns(self) -> int:
        return 5_000_000_000


def event(number: int = 1) -> RankEvent:
    return RankEvent(t=number, rank=0, name="e", at_ns=number)


def events_of(path: Path) -> list[Event]:
    return [e for e in read_journal(path).events if not isinstance(e, JournalOpened)]


@pytest.fixture
def fs() -> Iterator[FaultyFiles]:
    files = FaultyFiles()
    yield files
    files.gate.set()


def test_first_line_then_events_with_node_and_time(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, node="n7", version="1.2", clock=FixedClock())
    writer.record(RankEvent(t=4_000_000_000, rank=0, name="e", at_ns=1))
    writer.record(RankEvent(t=1, wall=3.5, node="other", rank=0, name="e", at_ns=1))
    assert writer.close(DEADLINE_S)
    opened, first, second = read_journal(path).events
    assert isinstance(opened, JournalOpened)
    assert (opened.node, opened.version, opened.pid) == ("n7", "1.2", os.getpid())
    assert opened.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (first.node, first.wall) == ("n7", 999.0)  # an event of one second ago
    assert (second.node, second.wall) == ("other", 3.5)
    assert path.stat().st_mode & 0o777 == 0o600


def test_flush_waits_for_what_was_recorded(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", node="n")
    writer.record(event(1))
    assert writer.flush(DEADLINE_S)
    assert [e.t for e in events_of(tmp_path / "j")] == [1]
    assert writer.close(DEADLINE_S)
    assert writer.close(0)


def test_text_files_come_after_the_events_before_them(tmp_path: Path, fs: FaultyFiles) -> None:
    writer = JournalWriter(tmp_path / "j", node="n", fs=fs)
    writer.record(event())
    assert writer.write_text(tmp_path / "errors" / "rank_0.json", "{}")
    assert writer.close(DEADLINE_S)
    assert (tmp_path / "errors" / "rank_0.json").read_text() == "{}"


def test_disk_is_synchronised_at_round_and_job_ends_only(tmp_path: Path, fs: FaultyFiles) -> None:
    writer = JournalWriter(tmp_path / "j", node="n", fs=fs)
    for one, syncs in (
        (event(), 0),
        (RoundStopped(t=1), 1),
        (event(), 1),
        (JobEnded(t=1, outcome="finished", exit_code=0), 2),
    ):
        writer.record(one)
        assert writer.flush(DEADLINE_S)
        assert fs.calls.count("fdatasync") == syncs
    assert writer.close(DEADLINE_S)


def test_full_disk_is_said_once_and_events_are_counted(
    tmp_path: Path, fs: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_KEPT_BYTES", 0)
    problems: list[str] = []
    writer = JournalWriter(tmp_path / "j", node="n", say=problems.append, fs=fs)
    writer.record(event(1))
    assert writer.flush(DEADLINE_S)
    fs.full = True
    for number in (2, 3, 4):
        writer.record(event(number))
        assert writer.flush(DEADLINE_S)
    assert writer.lost == 3
    fs.full = False
    writer.record(event(5))
    assert writer.close(DEADLINE_S)
    first, gap, last = events_of(tmp_path / "j")
    assert (first.t, last.t) == (1, 5)
    assert isinstance(gap, EventsLost)
    assert (gap.count, gap.reason) == (3, "No space left on device")
    (problem,) = problems
    assert str(tmp_path / "j") in problem
    assert "No space left on device" in problem


def test_flush_waits_for_the_first_line(tmp_path: Path, fs: FaultyFiles) -> None:
    """So that what happens to the file system afterwards happens to a journal that exists."""
    fs.gate.clear()
    writer = JournalWriter(tmp_path / "j", node="n", fs=fs)
    assert not writer.flush(0.01)
    fs.gate.set()
    assert writer.flush(DEADLINE_S)
    assert len(read_journal(tmp_path / "j").events) == 1
    assert writer.close(DEADLINE_S)


def test_events_that_a_full_disk_refused_are_written_when_there_is_room(
    tmp_path: Path, fs: FaultyFiles
) -> None:
    """Also where nothing else happens any more."""
    writer = JournalWriter(tmp_path / "j", node="n", fs=fs)
    assert writer.flush(DEADLINE_S)
    fs.full = True
    for number in (1, 2, 3):
        writer.record(event(number))
        assert writer.flush(DEADLINE_S)
    fs.full = False
    deadline = time.monotonic() + DEADLINE_S
    while len(found := events_of(tmp_path / "j")) < 3:
        assert time.monotonic() < deadline
        os.sched_yield()
    assert [each.t for each in found] == [1, 2, 3]
    assert writer.lost == 0
    assert writer.close(DEADLINE_S)


def test_a_disk_that_stays_full_is_tried_less_and_less_often(
    tmp_path: Path, fs: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_RETRY_S", 30.0)
    writer = JournalWriter(tmp_path / "j", node="n", fs=fs)
    assert writer.flush(DEADLINE_S)
    fs.full = True
    for number in range(100):
        writer.record(event(number))
        assert writer.flush(DEADLINE_S)
    assert fs.calls.count("write") + fs.calls.count("open") <= 5
    fs.full = False
    assert writer.close(DEADLINE_S), "which does not wait for the next attempt"
    assert len(events_of(tmp_path / "j")) == 100


def test_events_lost_at_the_end_are_told_by_close(
    tmp_path: Path, fs: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_KEPT_BYTES", 0)
    writer = JournalWriter(tmp_path / "j", node="n", fs=fs)
    assert writer.flush(DEADLINE_S)
    fs.full = True
    writer.record(event(1))
    assert writer.flush(DEADLINE_S)
    fs.full = False
    assert writer.close(DEADLINE_S)
    (gap,) = events_of(tmp_path / "j")
    assert isinstance(gap, EventsLost)


def test_text_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    problems: list[str] = []
    (tmp_path / "file").write_text("")
    writer = JournalWriter(tmp_path / "j", node="n", say=problems.append)
    writer.write_text(tmp_path / "file" / "below", "x")
    writer.write_text(tmp_path / "file" / "below too", "x")
    writer.write_text(str(tmp_path / "nul\0"), "x")
    writer.record(event())
    assert writer.close(DEADLINE_S)
    assert len(problems) == 1
    assert "below" in problems[0]
    assert len(events_of(tmp_path / "j")) == 1


def test_a_callback_that_raises_does_not_stop_the_journal(tmp_path: Path, fs: FaultyFiles) -> None:
    def fail(message: str) -> None:
        raise RuntimeError(message)

    fs.full = True
    writer = JournalWriter(tmp_path / "j", node="n", say=fail, fs=fs)
    writer.record(event(1))
    assert writer.flush(DEADLINE_S)
    fs.full = False
    writer.record(event(2))
    assert writer.close(DEADLINE_S)
    assert [e.t for e in events_of(tmp_path / "j") if isinstance(e, RankEvent)] == [1, 2]


def test_another_one_gets_every_event_also_when_the_disk_is_full(
    tmp_path: Path, fs: FaultyFiles
) -> None:
    fs.full = True
    writer = JournalWriter(tmp_path / "j", node="n7", clock=FixedClock(), fs=fs)
    got: list[Event] = []
    writer.subscribe(got.append)
    writer.record(event(1))
    assert [(one.t, one.node) for one in got] == [(1, "n7")]

    def broken(_: Event) -> None:
        raise ValueError

    writer.subscribe(broken)
    writer.record(event(2))
    assert writer.close(DEADLINE_S)
    assert [one.t for one in got] == [1, 2]


def test_a_last_word_is_a_line_of_its_own_in_the_same_launch(tmp_path: Path) -> None:
    path = tmp_path / "j"
    append_last(path, e.Remark(t=3, text="nobody there"))
    assert not path.exists()
    writer = JournalWriter(path, node="n")
    writer.record(event(1))
    assert writer.close(DEADLINE_S)
    with path.open("ab") as file:
        file.write(b'{"event":"rank_ev')
    append_last(path, e.Remark(t=3, node="n", text="it was killed"))
    (launch,) = read_journal(path).launches()
    assert [type(each) for each in launch] == [e.JournalOpened, RankEvent, e.Remark]
    assert read_journal(path).unreadable == 1


def test_moment_and_round_are_filled_in(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", node="n7", clock=FixedClock())
    got: list[Event] = []
    writer.subscribe(got.append)
    for each in (e.AgentPaused(seconds=1.0), e.RoundStarted(round=3, world_size=1, ranks=[0])):
        writer.record(each)
    writer.record(e.AgentPaused(seconds=1.0))
    writer.record(e.AgentPaused(t=5, round=2, seconds=1.0))
    assert writer.close(DEADLINE_S)
    now_ns = FixedClock().monotonic_ns()
    assert [(one.t, one.round) for one in got] == [(now_ns, -1), (now_ns, 3), (now_ns, 3), (5, 2)]


def test_hanging_disk_blocks_nobody_and_the_queue_is_bounded(
    tmp_path: Path, fs: FaultyFiles
) -> None:
    writer = JournalWriter(tmp_path / "j", node="n", max_events=10, fs=fs)
    assert writer.flush(DEADLINE_S)
    fs.gate.clear()
    writer.record(event(1))
    assert fs.hanging.wait(DEADLINE_S)
    for number in range(2, 102):
        writer.record(event(number))
    assert not writer.write_text(tmp_path / "t", "x")
    assert not writer.flush(0.01)
    assert writer.lost == 91
    fs.gate.set()
    assert writer.flush(DEADLINE_S)
    writer.record(event(500))
    assert writer.close(DEADLINE_S)
    got = events_of(tmp_path / "j")
    assert [e.t for e in got if isinstance(e, RankEvent)] == [*range(1, 11), 500]
    (gap,) = [e for e in got if isinstance(e, EventsLost)]
    assert gap.count == 91
    assert got.index(gap) == 10  # where the hole is


def test_bytes_waiting_are_bounded_too(tmp_path: Path, fs: FaultyFiles) -> None:
    writer = JournalWriter(tmp_path / "j", node="n", max_bytes=10_000, fs=fs)
    assert writer.flush(DEADLINE_S)
    fs.gate.clear()
    writer.record(event())
    assert fs.hanging.wait(DEADLINE_S)
    assert writer.write_text(tmp_path / "a", "x" * 6000)
    assert not writer.write_text(tmp_path / "b", "x" * 6000)
    fs.gate.set()
    assert writer.close(DEADLINE_S)
    assert not (tmp_path / "b").exists()


def test_close_is_bounded_while_the_disk_hangs(tmp_path: Path, fs: FaultyFiles) -> None:
    fs.gate.clear()
    writer = JournalWriter(tmp_path / "j", node="n", fs=fs)
    assert fs.hanging.wait(DEADLINE_S)
    assert not writer.close(0.01)
    writer.record(event())
    assert writer.lost == 1
    fs.gate.set()
    assert writer.close(DEADLINE_S)  # the thread has ended by itself


def test_a_pipe_nobody_reads_delays_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = JournalWriter(path, node="n")
    long = RankEvent(t=1, rank=0, name="e", at_ns=1, text="x" * 200_000)  # more than a pipe holds
    writer.record(long)
    assert not writer.flush(0.01)
    assert not writer.close(0.01)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.set_blocking(reader, True)
        taken = 0
        while taken < 200_000:
            taken += len(os.read(reader, 1 << 16))
        assert writer.close(DEADLINE_S)
    finally:
        os.close(reader)


def test_a_malformed_event_is_counted_not_raised(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", node="n")
    writer.record(RankEvent(t=1, rank=object(), name="e", at_ns=1))  # type: ignore[arg-type]
    writer.record(RankEvent(t="soon", rank=1, name="e", at_ns=1))  # type: ignore[arg-type]
    writer.record("not an event")  # type: ignore[arg-type]
    writer.record(event(4))
    assert writer.close(DEADLINE_S)
    gap, last = events_of(tmp_path / "j")
    assert isinstance(gap, EventsLost)
    assert gap.count == 3
    assert last.t == 4


def test_undecodable_arguments_and_huge_ones_are_kept_in_part(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", node="n")
    common = {"t": 1, "run_id": "r", "nproc_per_node": 1, "max_restarts": 0}
    writer.record(JobStarted(argv=["a\udcffb"], **common))  # type: ignore[arg-type]
    writer.record(JobStarted(argv=["x" * MAX_LINE, "y"], **common))  # type: ignore[arg-type]
    assert writer.close(DEADLINE_S)
    first, second = events_of(tmp_path / "j")
    assert isinstance(first, JobStarted)
    assert isinstance(second, JobStarted)
    assert first.argv == ["a\\udcffb"]
    assert second.argv[0].startswith("xxx")
    assert second.argv[1] == "y"


def test_two_launches_append_to_one_file(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = JournalWriter(tmp_path / "j", node="n")
        writer.record(event(number))
        assert writer.close(DEADLINE_S)
    journal = read_journal(tmp_path / "j")
    assert journal.unreadable == 0
    assert [type(e) for e in journal.events] == [JournalOpened, RankEvent] * 2


def test_many_threads_record_at_once(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", node="n")
    threads = [
        threading.Thread(target=lambda: [writer.record(event(n)) for n in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert writer.close(DEADLINE_S)
    assert len(events_of(tmp_path / "j")) == 800


def test_a_signal_handler_may_record_while_its_thread_does(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", node="n")
    handled = 0

    def handler(number: int, frame: object) -> None:
        nonlocal handled
        handled += 1
        writer.record(event(1))

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        recorded = 0
        deadline = time.monotonic() + DEADLINE_S
        while handled < 20 and time.monotonic() < deadline:
            writer.record(event(0))
            recorded += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert writer.close(DEADLINE_S)
    got = [e for e in events_of(tmp_path / "j") if isinstance(e, RankEvent)]
    assert handled >= 20
    assert len(got) + writer.lost == recorded + handled


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_file_system(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(mount), b"tmpfs", 0, b"size=64k") != 0:
        pytest.skip(f"may not mount: {os.strerror(ctypes.get_errno())}")
    try:
        problems: list[str] = []
        writer = JournalWriter(mount / "j", node="n", say=problems.append)
        writer.record(event(1))
        assert writer.flush(DEADLINE_S)
        filler = mount / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(b"x" * 100_000)
        for number in range(2, 102):
            writer.record(RankEvent(t=number, rank=0, name="e", at_ns=1, text="x" * 300))
        assert writer.flush(DEADLINE_S)
        assert len(problems) == 1
        filler.unlink()
        writer.record(event(1000))
        assert writer.close(DEADLINE_S)
        journal = read_journal(mount / "j")
        kept = [e for e in journal.events if isinstance(e, RankEvent)]
        assert [e.t for e in kept] == [*range(1, 102), 1000]
        assert journal.unreadable <= 1
    finally:
        assert libc.umount2(bytes(mount), 2) == 0
