"""Files that others append to keep their newest part; nobody is held up, and nothing moves."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fault_tolerance.output import following
from undaunted.fault_tolerance.output import rank_file as module
from undaunted.fault_tolerance.output.follower import Follower
from undaunted.fault_tolerance.output.rank_file import Bound, RankFile
from undaunted.fault_tolerance.output.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST = 1 << 20
LINE = b"%07d a line that a rank has printed\n"


@pytest.fixture(autouse=True)
def can_free(tmp_path: Path) -> None:
    following.skip_unless_parts_can_be_freed(tmp_path)


def append(path: Path, lines: range) -> None:
    following.append(path, b"".join(LINE % number for number in lines))


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Bound]:
    bound = Bound(RankFile(str(tmp_path / "stdout.log")), MOST)
    bound.open(Sink())
    yield bound
    bound.close(complete=True)


def followed(path: str | Path) -> Follower:
    parts = [Bound(RankFile(str(path)), MOST)]
    return Follower("it", lambda _: Sink(), parts, where="/somewhere", limit_s=60)


def test_the_newest_part_is_kept_where_it_was(tmp_path: Path, bound: Bound) -> None:
    path = tmp_path / "stdout.log"
    for part in range(10):
        append(path, range(part * 10_000, (part + 1) * 10_000))
        size = path.stat().st_size
        bound.step()
        assert path.stat().st_blocks * 512 <= MOST + 64 * 1024
        assert path.stat().st_size == size, "whoever reads it has its place"
    data, freed = path.read_bytes(), bound.file.freed
    assert data.endswith(LINE % 99_999)
    assert len(data) - freed >= MOST * 3 // 4 - 1
    assert data[freed:].strip(b"\0") == data[freed:]
    assert bound.file.read(freed - 1, 10) is None
    assert bound.file.read(freed, 10) == data[freed : freed + 10]


def test_what_is_left_is_a_file_of_its_own_in_the_end(tmp_path: Path, bound: Bound) -> None:
    path = tmp_path / "stdout.log"
    append(path, range(100_000))
    bound.finish()
    first, rest = path.read_bytes().split(b"\n", 1)
    lines = -(-bound.file.freed // len(LINE % 0))  # of the last one of these, a part was left
    gone = lines * len(LINE % 0)
    assert gone > bound.file.freed
    assert b" %d bytes " % gone in first
    assert rest == b"".join(LINE % number for number in range(lines, 100_000))
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["stdout.log"]


def test_a_line_that_has_no_end_is_kept_from_where_it_is(tmp_path: Path, bound: Bound) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"x" * 3 * MOST)
    bound.finish()
    assert len(path.read_bytes().split(b"\n", 1)[1]) == 3 * MOST - bound.file.freed


def test_a_small_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    append(path, range(3))
    before = path.stat().st_ino
    bounds = followed(path)
    bounds.start()
    append(path, range(3, 6))
    assert bounds.close()
    assert path.read_bytes() == b"".join(LINE % number for number in range(6))
    assert path.stat().st_ino == before
    assert bounds.problems == []


def test_a_process_that_prints_is_bounded_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "attempt_0" / "0" / "stdout.log"
    bounds = followed(path)
    bounds.start()
    script = "import sys\nfor n in range(200_000): sys.stdout.write(f'{n:07} ' + 'x' * 50 + '\\n')"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    subprocess.run([sys.executable, "-c", script], stdout=fd, check=True)
    os.close(fd)
    assert bounds.close()
    assert path.stat().st_size <= MOST + 200
    assert path.read_bytes().endswith(b"0199999 " + b"x" * 50 + b"\n")
    assert bounds.problems == []


def test_a_device_is_left_alone() -> None:
    bounds = followed("/dev/null")
    bounds.start()
    assert bounds.close()
    assert bounds.problems == []


def test_a_file_system_that_cannot_do_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankFile, "can_free", lambda _: False)
    path = tmp_path / "stdout.log"
    bounds = followed(path)
    bounds.start()
    append(path, range(100_000))
    assert bounds.close()
    (problem,) = bounds.problems
    assert str(path) in problem
    assert "--log-max-bytes" in problem
    assert path.stat().st_size == 100_000 * len(LINE % 0)


def test_a_disk_that_is_full_in_the_end_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stdout.log"
    bounds = followed(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "replace", full)
    bounds.start()
    append(path, range(100_000))
    assert bounds.close()
    (problem,) = bounds.problems
    assert "No space left" in problem
    assert path.read_bytes().endswith(LINE % 99_999)
    assert os.listdir(tmp_path) == ["stdout.log"]
