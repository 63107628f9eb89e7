"""Files that others append to keep their newest part; nobody is held up, and nothing moves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.output import bounded_files
from undaunted.fault_tolerance.output.bounded_files import BoundedFile, BoundedFiles
from undaunted.logs import holes

if TYPE_CHECKING:
    from pathlib import Path

MOST = 1 << 20
LINE = b"%07d a line that a rank has printed\n"


@pytest.fixture(autouse=True)
def can_free(tmp_path: Path) -> None:
    with (tmp_path / "try").open("wb") as file:
        if not holes.free(file.fileno(), 0, 4096):
            pytest.skip("this file system cannot free parts of files")


def append(path: Path, lines: range) -> None:
    with path.open("ab") as file:
        for number in lines:
            file.write(LINE % number)


def used(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_the_newest_part_is_kept_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    file = BoundedFile(str(path), MOST)
    for part in range(10):
        append(path, range(part * 10_000, (part + 1) * 10_000))
        size = path.stat().st_size
        file.trim()
        assert used(path) <= MOST + 64 * 1024
        assert path.stat().st_size == size, "whoever reads it has its place"
    data = path.read_bytes()
    assert data.endswith(LINE % 99_999)
    assert len(data) - file.freed >= MOST * 3 // 4 - 1
    assert data[file.freed :].strip(b"\0") == data[file.freed :]
    file.close()


def test_what_is_left_is_a_file_of_its_own_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    file = BoundedFile(str(path), MOST)
    append(path, range(100_000))
    file.trim()
    file.shorten()
    file.close()
    first, rest = path.read_bytes().split(b"\n", 1)
    lines = -(-file.freed // len(LINE % 0))  # of the last one of these, a part was left
    gone = lines * len(LINE % 0)
    assert gone > file.freed
    assert first == b"[undaunted] %d bytes of older output are gone (--log-max-bytes)" % gone
    assert rest == b"".join(LINE % number for number in range(lines, 100_000))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.name != "try"] == ["stdout.log"]


def test_a_line_that_has_no_end_is_kept_from_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    file = BoundedFile(str(path), MOST)
    path.write_bytes(b"x" * 3 * MOST)
    file.trim()
    file.shorten()
    file.close()
    assert len(path.read_bytes().split(b"\n", 1)[1]) == 3 * MOST - file.freed


def test_a_small_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    append(path, range(3))
    before = path.stat().st_ino
    bounds = BoundedFiles([str(path)], MOST)
    bounds.start()
    append(path, range(3, 6))
    assert bounds.close(10)
    assert path.read_bytes() == b"".join(LINE % number for number in range(6))
    assert path.stat().st_ino == before
    assert bounds.problems == []


def test_a_process_that_prints_is_bounded_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "attempt_0" / "0" / "stdout.log"
    bounds = BoundedFiles([str(path), str(path)], MOST)
    bounds.start()
    script = "import sys\nfor n in range(200_000): sys.stdout.write(f'{n:07} ' + 'x' * 50 + '\\n')"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    subprocess.run([sys.executable, "-c", script], stdout=fd, check=True)
    os.close(fd)
    assert bounds.close(10)
    assert path.stat().st_size <= MOST + 200
    assert path.read_bytes().endswith(b"0199999 " + b"x" * 50 + b"\n")
    assert bounds.problems == []


@pytest.mark.parametrize("most", [0, MOST])
def test_nothing_to_do(tmp_path: Path, most: int) -> None:
    bounds = BoundedFiles([] if most else [str(tmp_path / "x")], most)
    bounds.start()
    assert bounds.close(10)
    assert not (tmp_path / "x").exists()


def test_a_disk_that_answers_only_after_the_close_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late start itself gives back what it has opened."""
    opened, answers = threading.Event(), threading.Event()

    def hangs(path: str, most: int) -> BoundedFile:
        opened.set()
        assert answers.wait(60)
        return BoundedFile(path, most)

    monkeypatch.setattr(bounded_files, "BoundedFile", hangs)
    bounds = BoundedFiles([str(tmp_path / "x")], MOST)
    starting = threading.Thread(target=bounds.start)
    starting.start()
    assert opened.wait(60)
    assert bounds.close(0.0)
    answers.set()
    starting.join(60)
    assert not starting.is_alive()
    assert bounds.problems == []


def test_a_device_is_left_alone() -> None:
    bounds = BoundedFiles(["/dev/null"], MOST)
    bounds.start()
    assert bounds.close(10)
    assert bounds.problems == []


def test_a_file_system_that_cannot_do_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_files.holes, "free", lambda *_: False)
    path = tmp_path / "stdout.log"
    bounds = BoundedFiles([str(path)], MOST)
    bounds.start()
    append(path, range(100_000))
    assert bounds.close(10)
    (problem,) = bounds.problems
    assert str(path) in problem
    assert "--log-max-bytes" in problem
    assert path.stat().st_size == 100_000 * len(LINE % 0)


def test_a_disk_that_is_full_in_the_end_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stdout.log"
    bounds = BoundedFiles([str(path)], MOST)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bounded_files.os, "replace", full)
    bounds.start()
    append(path, range(100_000))
    assert bounds.close(10)
    (problem,) = bounds.problems
    assert "No space left" in problem
    assert path.read_bytes().endswith(LINE % 99_999)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["stdout.log", "try"]
