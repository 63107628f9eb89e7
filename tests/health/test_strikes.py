"""What is remembered of a node from job to job."""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING

import pytest

from undaunted.health import strikes
from undaunted.health.strikes import Strike, add, read, refusal

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 86400.0


def test_strikes_are_kept_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "below" / "strikes"
    with pytest.raises(OSError, match=r"no directory .*below"):
        read(path)
    for number in range(3):
        add(path, Strike(float(number), "run", f"GPU {number} is lost"))
    assert [each.time for each in read(path).strikes] == [0, 1, 2]
    assert path.stat().st_mode & 0o777 == 0o600


def test_of_very_many_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strikes, "_MOST_KEPT", 3)
    path = tmp_path / "strikes"
    for number in range(5):
        add(path, Strike(float(number), "run", "x" * 10_000))
    assert [each.time for each in read(path).strikes] == [2, 3, 4]
    assert all(len(each.reason) == 300 for each in read(path).strikes)


@pytest.mark.parametrize("most_kept", [3, 1000])
def test_a_full_disk_loses_none_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int
) -> None:
    monkeypatch.setattr(strikes, "_MOST_KEPT", most_kept)
    path = tmp_path / "strikes"
    for number in range(3):
        add(path, Strike(float(number), "run", "x"))
    before, write = read(path), os.pwrite

    def fill(fd: int, line: bytes, at: int) -> int:
        if at:  # the last room takes a part of a line
            return write(fd, line[:5], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(strikes.os, "pwrite", fill)
    with pytest.raises(OSError, match="No space left"):
        add(path, Strike(3.0, "run", "x"))
    assert read(path) == before
    assert len(before.strikes) == 3


def test_lines_that_are_no_strikes_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "strikes"
    path.write_bytes(
        b"[" * 200_000
        + b'\n\xff\n[]\n{"time": "x"}\n{"time": 1, "run_id": "r", "reason": "a"}\nnull\n'
    )
    assert read(path) == ([Strike(1.0, "r", "a")], 5)
    add(path, Strike(2.0, "r", "b"))
    assert len(read(path).strikes) == 2


@pytest.mark.parametrize("most_bytes", [1 << 20, 400])
def test_what_else_is_in_the_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(strikes, "_MOST_BYTES", most_bytes)
    monkeypatch.setattr(strikes, "_MOST_KEPT", 2)
    path = tmp_path / "strikes"
    assert read(path) == ([], 0)
    other = random.Random(1).randbytes(1000)
    path.write_bytes(other)
    for number in range(3):
        add(path, Strike(float(number), "r", "a"))
    assert path.read_bytes().startswith(other)
    assert [each.time for each in read(path).strikes] == [0, 1, 2]
    assert read(path).others > 0


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=r"file|symbolic|links"):
            add(tmp_path / name, Strike(1.0, "r", "a"))
        with pytest.raises(OSError, match=r"file|symbolic|links"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("days_ago", "refused"),
    [((), False), ((1, 2), False), ((1, 2, 3), True), ((1, 2, 9), False), ((-1, 1, 2), False)],
)
def test_so_many_within_the_time_are_too_many(days_ago: tuple[int, ...], refused: bool) -> None:
    now = 100 * DAY_S
    known = [Strike(now - days * DAY_S, "job7", "GPU 3") for days in sorted(days_ago, reverse=True)]
    why = refusal(known, (3, 7 * DAY_S), now)
    assert bool(why) is refused
    if refused:
        for word in ("3 strikes", "7 d", "1 d", "job7", "GPU 3"):
            assert word in why
