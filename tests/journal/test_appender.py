"""What is in the file after any file operation failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.journal.faulty import FaultyFiles
from undaunted.journal import lines
from undaunted.journal.appender import Appender
from undaunted.journal.events import EventsLost, JournalOpened, RankEvent
from undaunted.journal.reader import Journal, read_journal

if TYPE_CHECKING:
    from pathlib import Path


def event_line(number: int) -> bytes:
    return lines.encode(RankEvent(t=number, rank=0, name="e", at_ns=number))


def lost_line(count: int, reason: str) -> bytes:
    return lines.encode(EventsLost(t=1, count=count, reason=reason))


def make(path: Path, fs: FaultyFiles | None = None, keep_bytes: int = 0) -> Appender:
    return Appender(
        str(path),
        header=lambda: lines.encode(JournalOpened(t=1, boot_id="b", pid=7)),
        lost_line=lost_line,
        keep_bytes=keep_bytes,
        fs=fs or os,
    )


def numbers(journal: Journal) -> list[int]:
    return [event.t for event in journal.events if isinstance(event, RankEvent)]


def lost(journal: Journal) -> int:
    return sum(event.count for event in journal.events if isinstance(event, EventsLost))


def test_lines_follow_one_header(tmp_path: Path) -> None:
    appender = make(tmp_path / "j")
    assert appender.append([event_line(1), event_line(2)]) == ""
    assert appender.append([event_line(3)]) == ""
    appender.close()
    journal = read_journal(tmp_path / "j")
    assert isinstance(journal.events[0], JournalOpened)
    assert numbers(journal) == [1, 2, 3]
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


def test_nothing_to_write_touches_nothing_after_the_header(tmp_path: Path) -> None:
    appender = make(tmp_path / "j")
    appender.append([])
    before = (tmp_path / "j").read_bytes()
    appender.append([])
    appender.close()
    assert before.count(b"\n") == 1
    assert (tmp_path / "j").read_bytes() == before


def test_a_line_an_earlier_writer_left_unfinished_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(event_line(1) + event_line(2)[:-9])
    appender = make(path)
    appender.append([event_line(3)])
    appender.close()
    journal = read_journal(path)
    assert numbers(journal) == [1, 3]
    assert [problem.line for problem in journal.problems] == [2]


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "j").symlink_to(tmp_path / "victim")
    appender = make(tmp_path / "j")
    assert appender.append([event_line(1)]) != ""
    assert appender.lost == 1
    assert (tmp_path / "victim").read_text() == "untouched"


def test_a_deleted_file_is_created_again_and_its_events_are_counted(tmp_path: Path) -> None:
    appender = make(tmp_path / "j")
    appender.append([event_line(1), event_line(2)])
    (tmp_path / "j").unlink()
    appender.append([event_line(3)])
    appender.close()
    journal = read_journal(tmp_path / "j")
    assert isinstance(journal.events[0], JournalOpened)
    assert numbers(journal) == [3]
    assert lost(journal) == 2


def test_a_missing_directory_is_a_loss_until_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "later" / "j"
    appender = make(path)
    assert appender.append([event_line(1)]) == "No such file or directory"
    path.parent.mkdir()
    assert appender.append([event_line(2)]) == ""
    appender.close()
    journal = read_journal(path)
    assert [type(event) for event in journal.events] == [JournalOpened, EventsLost, RankEvent]
    assert lost(journal) == 1


def test_the_newest_lines_are_kept_until_there_is_room(tmp_path: Path) -> None:
    fs = FaultyFiles()
    line = len(event_line(1))
    appender = make(tmp_path / "j", fs, keep_bytes=3 * line)
    assert appender.append([event_line(1)]) == ""
    fs.full = True
    for number in range(2, 7):
        assert appender.append([event_line(number)]) == "No space left on device"
    appender.keep([event_line(7)])
    assert appender.behind
    fs.full = False
    assert appender.append([]) == ""
    assert not appender.behind
    appender.close()
    journal = read_journal(tmp_path / "j")
    assert numbers(journal) == [1, 5, 6, 7]
    assert [type(event) for event in journal.events[:3]] == [JournalOpened, RankEvent, EventsLost]
    assert lost(journal) == appender.lost_total == 3


def test_what_is_given_up_is_counted(tmp_path: Path) -> None:
    fs = FaultyFiles()
    fs.full = True
    appender = make(tmp_path / "j", fs, keep_bytes=100_000)
    appender.append([event_line(1), event_line(2)])
    assert appender.lost == 0
    appender.give_up()
    assert appender.lost == 2


def test_an_impossible_path_is_a_loss_and_no_exception(tmp_path: Path) -> None:
    appender = make(tmp_path / "nul\0")
    assert appender.append([event_line(1)]) != ""
    assert appender.lost == 1


def test_sync_reports_what_fails_but_not_that_a_pipe_cannot(tmp_path: Path) -> None:
    fs = FaultyFiles()
    appender = make(tmp_path / "j", fs)
    assert appender.sync() == ""  # nothing is open
    appender.append([event_line(1)])
    assert appender.sync() == ""
    fs.fail_at = len(fs.calls)
    assert appender.sync() == "Input/output error"
    appender.close()
    os.mkfifo(tmp_path / "fifo")
    pipe = make(tmp_path / "fifo")
    pipe.append([event_line(1)])
    assert pipe.sync() == ""
    pipe.close()


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("fail_count", [1, 2, 5])
@pytest.mark.parametrize("keep_bytes", [0, 200, 100_000])
def test_every_event_is_in_the_file_or_counted_whichever_call_fails(
    tmp_path: Path, *, short: bool, torn: bool, fail_count: int, keep_bytes: int
) -> None:
    for fail_at in range(30):
        path = tmp_path / f"j{fail_at}"
        path.write_bytes(b'{"event":"ra' if torn else b"")
        fs = FaultyFiles()
        fs.fail_at, fs.fail_count, fs.short = fail_at, fail_count, short
        appender = make(path, fs, keep_bytes)
        for first in range(0, 12, 2):
            appender.append([event_line(first), event_line(first + 1)])
        fs.fail_at = None
        appender.append([event_line(12)])
        appender.close()

        journal = read_journal(path)
        assert len(numbers(journal)) + lost(journal) == 13
        assert numbers(journal) == sorted(set(numbers(journal)))
        assert numbers(journal)[-1] == 12
        assert keep_bytes < 1000 or lost(journal) == 0
        assert not appender.behind
        assert journal.unreadable <= torn + 1
        assert appender.lost == 0
        assert appender.lost_total == lost(journal)


@hypothesis.given(cut=st.integers(0, 10_000), count=st.integers(1, 5))
def test_wherever_a_write_is_cut_the_count_is_right(
    tmp_path_factory: pytest.TempPathFactory, cut: int, count: int
) -> None:
    class Cut(FaultyFiles):
        left: int | None = None

        def _call(self, name: str, *args: object) -> object:
            if name != "write" or self.left is None:
                return super()._call(name, *args)
            if self.left == 0:
                raise OSError(28, "full")
            fd, data = args
            taken = os.write(fd, data[: self.left])  # type: ignore[arg-type,index]
            self.left -= taken
            return taken

    path = tmp_path_factory.mktemp("cut") / "j"
    fs = Cut()
    appender = make(path, fs)
    batch = [event_line(number) for number in range(count)]
    fs.left = cut % (sum(map(len, batch)) + 100)
    appender.append(batch)
    fs.left = None
    appender.append([event_line(99)])
    appender.close()
    journal = read_journal(path)
    assert len(numbers(journal)) + lost(journal) == count + 1
    assert journal.unreadable <= 1
    assert sum(isinstance(event, JournalOpened) for event in journal.events) == 1
