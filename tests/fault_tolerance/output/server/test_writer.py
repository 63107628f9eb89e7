from __future__ import annotations

import errno
import os
import queue
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.output import log_file
from undaunted.fault_tolerance.output.server import messages as w
from undaunted.fault_tolerance.output.server import writer as module
from undaunted.fault_tolerance.output.server.writer import Writer, lost_here, parts_of

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 30.0


def lines(number: int, data: bytes, path: str = "log") -> w.Lines:
    return w.Lines(sender="s", number=number, path=path, data=data)


class Written:
    def __init__(self) -> None:
        self._batches: queue.Queue[list[w.Lines]] = queue.Queue()

    def __call__(self, batch: list[w.Lines]) -> None:
        self._batches.put(batch)

    def wait_for(self, number: int) -> None:
        while number not in [each.number for each in self._batches.get(timeout=DEADLINE_S)]:
            pass


def test_a_full_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    real, written, said = os.writev, Written(), []
    refused: queue.Queue[None] = queue.Queue()
    room = [3]  # bytes; -1 = as many as there are

    def writev(fd: int, pieces: list[memoryview]) -> int:
        if room[0] < 0:
            return real(fd, pieces)
        if not room[0]:
            refused.put(None)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count, room[0] = room[0], 0
        return os.write(fd, b"".join(pieces)[:count])

    monkeypatch.setattr(log_file.os, "writev", writev)
    writer = Writer(str(tmp_path), written, said.append)
    writer.add(lines(0, b"abcdef\n"))
    writer.add(lines(1, b"ghi\n"))
    refused.get(timeout=DEADLINE_S)
    refused.get(timeout=DEADLINE_S)
    room[0] = -1
    written.wait_for(1)
    assert writer.close(DEADLINE_S)
    assert (tmp_path / "log").read_bytes() == b"abcdef\nghi\n"
    (line,) = said
    assert "No space left on device; trying again" in line


def test_a_disk_that_stays_full_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)

    def full(fd: int, pieces: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(log_file.os, "writev", full)
    writer = Writer(str(tmp_path), Written(), lambda _: None)
    for number in range(5):
        writer.add(lines(number, b"x\n"))
    assert not writer.close(0.1)


def test_a_file_that_can_never_be_written_costs_its_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    said: list[str] = []
    written = Written()
    writer = Writer(str(tmp_path), written, said.append)
    writer.add(lines(0, b"a\nb\n", "taken"))
    writer.add(lines(1, b"good\n"))
    written.wait_for(1)
    (tmp_path / "taken").rmdir()
    writer.add(lines(2, b"c\n", "taken"))
    assert writer.close(DEADLINE_S)
    assert (tmp_path / "log").read_bytes() == b"good\n"
    assert (tmp_path / "taken").read_bytes() == lost_here(2, 4) + b"c\n"
    (line,) = said
    assert "Is a directory" in line


def test_a_line_that_was_cut_off_is_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"whole\nbegun")
    writer = Writer(str(tmp_path), Written(), lambda _: None)
    writer.add(lines(0, b"next\n"))
    assert writer.close(DEADLINE_S)
    assert (tmp_path / "log").read_bytes() == b"whole\nbegun\nnext\n"


def test_many_files(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), Written(), lambda _: None)
    for turn in range(2):
        for number in range(200):
            writer.add(lines(200 * turn + number, b"%d\n" % turn, f"{number}.log"))
    assert writer.close(DEADLINE_S)
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"0\n1\n"}


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 bytes"), (3400, "3.4 kB"), (2_500_000, "2.5 MB")]
)
def test_how_much_is_lost(size: int, text: str) -> None:
    assert lost_here(7, size) == f"[undaunted] 7 lines ({text}) lost here\n".encode()


@pytest.mark.parametrize("path", ["a", "a/b.log", "a" * 255])
def test_paths_below(path: str) -> None:
    assert "/".join(parts_of(path)) == path


@pytest.mark.parametrize(
    "path", ["", "/", "/a", "a/", "..", "a/../b", "./a", "a//b", "a\0", "a" * 256, "a/" * 16 + "a"]
)
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="no path below"):
        parts_of(path)
