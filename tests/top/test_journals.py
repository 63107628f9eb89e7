"""Following journals that grow, shrink, vanish, and hold anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.journal import sample
from undaunted.journal.lines import MAX_LINE, encode
from undaunted.top.journals import JournalFile, Journals, Watch

if TYPE_CHECKING:
    from pathlib import Path

LINES = [encode(event) for event in sample.RUN]
CONTENT = b"".join(LINES)


def journal(path: Path, content: bytes = CONTENT) -> JournalFile:
    path.write_bytes(content)
    return JournalFile(path)


def test_what_was_added_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal-a.jsonl"
    file = journal(path, b"".join(LINES[:3]))
    assert file.read() == sample.RUN[:3]
    assert file.read() == []
    with path.open("ab") as more:
        more.write(LINES[3] + LINES[4][:10])
    assert file.read() == [sample.RUN[3]]
    with path.open("ab") as more:
        more.write(LINES[4][10:])
    assert file.read() == [sample.RUN[4]]


def test_in_pieces(tmp_path: Path) -> None:
    file = journal(tmp_path / "journal-a.jsonl")
    found = file.read(100)
    assert file.behind == len(CONTENT) - 100
    while file.behind:
        found += file.read(100)
    assert found == sample.RUN


def test_one_that_has_become_shorter_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal-a.jsonl"
    file = journal(path)
    file.read()
    os.truncate(path, len(LINES[0]) + 5)
    assert file.read() == sample.RUN[:1]
    with path.open("ab") as more:
        more.write(b"\n" + LINES[1])
    assert file.read() == [sample.RUN[1]]
    assert file.unreadable == 1


def test_another_file_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "journal-a.jsonl"
    file = journal(path, LINES[0])
    file.read()
    (tmp_path / "new").write_bytes(CONTENT)
    (tmp_path / "new").rename(path)
    assert file.read() == sample.RUN


def test_lines_that_are_no_events(tmp_path: Path) -> None:
    long = b"x" * (MAX_LINE + 10) + b"\n"
    content = b"garbage\n\n" + LINES[0] + long + LINES[1] + b'{"event":"of_tomorrow","t":1}\n'
    file = journal(tmp_path / "journal-a.jsonl", content + LINES[2])
    found = file.read(1000)
    while file.behind:
        found += file.read(100_000)
    assert found == sample.RUN[:3]
    assert file.unreadable == 2


@given(content=st.binary(max_size=300), piece=st.integers(1, 50))
def test_any_bytes(tmp_path_factory, content: bytes, piece: int) -> None:  # type: ignore[no-untyped-def]
    file = journal(tmp_path_factory.mktemp("any") / "journal-a.jsonl", content)
    file.read(piece)
    while file.behind:
        file.read(piece)


def test_all_journals_of_a_directory(tmp_path: Path) -> None:
    journals = Journals(tmp_path)
    assert journals.read() == []
    journal(tmp_path / "journal-b.jsonl")
    assert journals.read() == [("journal-b.jsonl", sample.RUN)]
    journal(tmp_path / "journal-a.jsonl", b"garbage\n")
    assert dict(journals.read()) == {"journal-a.jsonl": [], "journal-b.jsonl": []}
    assert (journals.problem, journals.unreadable, journals.progress) == ("", 1, None)


def test_one_journal_by_name(tmp_path: Path) -> None:
    journal(tmp_path / "journal-a.jsonl")
    journal(tmp_path / "journal-b.jsonl")
    journals = Journals(tmp_path / "journal-b.jsonl")
    assert journals.read() == [("journal-b.jsonl", sample.RUN)]


def test_what_vanishes_is_told_and_stays_known(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    file = journal(run / "journal-a.jsonl")
    journals = Journals(run)
    journals.read()
    file.path.unlink()
    assert journals.read() == [("journal-a.jsonl", [])]
    assert journals.problem == f"{file.path}: No such file or directory"
    run.rmdir()
    assert journals.read() == [("journal-a.jsonl", [])]
    assert journals.problem == f"{run}: No such file or directory"


def test_a_pipe_or_a_link_in_the_place_of_a_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal-a.jsonl")
    (tmp_path / "journal-b.jsonl").symlink_to(tmp_path / "other")
    (tmp_path / "other").write_bytes(CONTENT)
    journals = Journals(tmp_path)
    assert journals.read() == [("journal-b.jsonl", [])]
    assert journals.problem.endswith("journal-b.jsonl: is a link, which is not followed")


def test_progress(tmp_path: Path) -> None:
    path = tmp_path / "journal-a.jsonl"
    with path.open("wb") as big:
        big.truncate(6 << 20)
    journals = Journals(tmp_path)
    journals.read()
    assert journals.progress == 4 / 6
    journals.read()
    assert journals.progress is None


def test_the_watch_tells_of_growth(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    try:
        (tmp_path / "journal-a.jsonl").write_bytes(CONTENT)
        fd = watch.fileno()
        assert fd is not None
        assert os.read(fd, 1000)
        watch.drain()
    finally:
        watch.close()
        watch.close()


def test_a_watch_on_nothing(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "missing")
    watch.drain()
    watch.close()
