"""Journals are found, and read whatever is in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.journal import sample
from undaunted.journal import reader
from undaunted.journal.events import JournalOpened, RankEvent
from undaunted.journal.lines import MAX_LINE, encode
from undaunted.journal.reader import find_journals, newest_run, read_journal

if TYPE_CHECKING:
    from pathlib import Path


GOOD = encode(RankEvent(t=1, rank=0, name="e", at_ns=1))


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "journal-n0.jsonl"
    path.write_bytes(content)
    return path


def test_a_whole_journal(tmp_path: Path) -> None:
    journal = read_journal(write(tmp_path, b"".join(map(encode, sample.RUN))))
    assert journal.events == sample.RUN
    assert (journal.unreadable, journal.unknown, journal.problems) == (0, 0, [])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"garbage\n", "malformed"),
        (b"\xff\xfe\x00\n", "malformed"),
        (b"[1,2]\n", "Expected `object`"),
        (b'{"t":1}\n', "event"),
        (b'{"event":7,"t":1}\n', "Expected `str`"),
        (b'{"event":"rank_event","t":"x"}\n', "Expected `int`"),
        (b'{"event":"rank_event","t":1}\n', "missing required field"),
        (
            b'{"event":"round_started","t":1,"world_size":999999999999,"ranks":[]}\n',
            "Expected `int` <= 1000000",
        ),
        (b'{"event":"\xff"}\n', ""),
        (b"[" * 100_000 + b"\n", ""),
        (b'{"event":"rank_event","x":' + b"[" * 100_000 + b"\n", ""),
        (b"x" * (MAX_LINE + 1) + b"\n", "longer than"),
        (b"x" * (3 * MAX_LINE) + b"\n", "longer than"),
    ],
)
def test_a_bad_line_costs_only_itself(tmp_path: Path, bad: bytes, reason: str) -> None:
    journal = read_journal(write(tmp_path, GOOD + bad + GOOD))
    assert len(journal.events) == 2
    assert (journal.unreadable, journal.unknown) == (1, 0)
    assert journal.problems[0].line == 2
    assert reason in journal.problems[0].reason


def test_a_line_of_the_greatest_length_is_read(tmp_path: Path) -> None:
    padding = b" " * (MAX_LINE - len(GOOD))
    journal = read_journal(write(tmp_path, padding + GOOD + GOOD))
    assert len(journal.events) == 2


def test_a_torn_last_line_is_told_as_such(tmp_path: Path) -> None:
    journal = read_journal(write(tmp_path, GOOD + GOOD[:-7]))
    assert len(journal.events) == 1
    assert "cut off" in journal.problems[0].reason


def test_a_last_line_that_lacks_only_its_line_feed_is_whole(tmp_path: Path) -> None:
    assert len(read_journal(write(tmp_path, GOOD + GOOD[:-1])).events) == 2


def test_events_and_fields_of_a_newer_build_are_skipped(tmp_path: Path) -> None:
    newer = b'{"event":"teleported","t":1,"to":"mars"}\n' + GOOD.replace(b"{", b'{"new":[1],', 1)
    journal = read_journal(write(tmp_path, newer))
    assert len(journal.events) == 1
    assert (journal.unreadable, journal.unknown) == (0, 1)


def test_blank_lines_are_no_problem(tmp_path: Path) -> None:
    assert read_journal(write(tmp_path, b"\n" + GOOD + b"\n \n")).unreadable == 0


def test_the_list_of_problems_is_bounded(tmp_path: Path) -> None:
    journal = read_journal(write(tmp_path, b"x\n" * 1000))
    assert journal.unreadable == 1000
    assert len(journal.problems) == 100


@hypothesis.given(content=st.binary(max_size=300), at=st.integers(0, 10_000))
def test_no_content_is_an_exception(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, at: int
) -> None:
    whole = b"".join(map(encode, sample.RUN))
    place = at % len(whole)
    path = tmp_path_factory.mktemp("any") / "j"
    path.write_bytes(whole[:place] + content + whole[place:])
    journal = read_journal(path)
    spoilt = 2 + content.count(b"\n")
    assert len(journal.events) >= len(sample.RUN) - spoilt


def test_launches_begin_where_another_process_opened_the_file(tmp_path: Path) -> None:
    def opened(pid: int) -> bytes:
        return encode(JournalOpened(t=1, boot_id="b", pid=pid))

    content = GOOD + opened(1) + GOOD + opened(1) + GOOD + opened(2) + GOOD
    launches = read_journal(write(tmp_path, content)).launches()
    assert [len(launch) for launch in launches] == [1, 4, 2]
    assert read_journal(write(tmp_path, b"")).launches() == []


def test_journals_of_all_nodes_are_found(tmp_path: Path) -> None:
    for name in ("journal-b.jsonl", "journal-a.jsonl", "journal-a.jsonl.tmp", "stacks.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "journal-dir.jsonl").mkdir()
    assert [path.name for path in find_journals(tmp_path)] == [
        "journal-a.jsonl",
        "journal-b.jsonl",
    ]
    with pytest.raises(FileNotFoundError):
        find_journals(tmp_path / "missing")


LINES = st.sampled_from([
    b'{"event":"round_stopped","t":1}', b'{"event":"round_stopped","t":2,"unkillable":[7]}',
    b"junk", b"", b'{"event":"teleported","t":1}', b"x" * 130, b"y" * 400, b'\xff{"t":',
])  # fmt: skip


@hypothesis.given(
    lines=st.lists(LINES, max_size=12), end=st.sampled_from([b"", b"\n"]), block=st.integers(1, 120)
)
def test_how_much_is_read_at_once_does_not_matter(
    lines: list[bytes], end: bytes, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "journal-blocks.jsonl"
    path.write_bytes(b"\n".join(lines) + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "MAX_LINE", 120)
        patch.setattr(reader, "_BLOCK", block)
        found = read_journal(path)
        patch.setattr(reader, "_take_all", lambda *_: False)
        patch.setattr(reader, "_BLOCK", 1 << 20)
        expected = read_journal(path)
    assert found == expected


def make_run(directory: Path, written_s: int, node: str = "n0") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    journal = directory / f"journal-{node}.jsonl"
    journal.write_text("")
    os.utime(journal, (written_s, written_s))
    return directory


def test_the_journal_written_last_decides(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 5)
    made = make_run(tmp_path / "b", 1)
    make_run(tmp_path / "b", 9, node="n1")
    make_run(tmp_path / "c", 7)
    assert newest_run(tmp_path) == made


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    made = make_run(tmp_path / "a", 5)
    (tmp_path / "link").symlink_to(make_run(tmp_path / "elsewhere" / "b", 9))
    assert newest_run(tmp_path) == made


def test_none(tmp_path: Path) -> None:
    assert newest_run(tmp_path) is None
    assert newest_run(tmp_path / "missing") is None
