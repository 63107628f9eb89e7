"""All pairs of what is asked for: every line is in its file, or shown, or counted.

Ranks print lines of one length, so that bytes that are counted are lines that are counted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.fault_tolerance.output import following
from tests.fault_tolerance.output.following import DEADLINE_S, Pipe, content_of, wait_for
from undaunted.fault_tolerance.output import console, destinations, round_output
from undaunted.fault_tolerance.output import follower as follower_module
from undaunted.fault_tolerance.output.log_file import LogFile
from undaunted.fault_tolerance.output.round_output import RoundOutput
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_CONSOLE, TO_FILE, RunConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

WIDTH = 100
LINES = 4_000  # of each rank
MOST = 128 * 1024
RANKS = (2, 3)
NOTICES = 20  # lines that say what is missing: a reader that stalls may miss some of these, too
READERS = ("fast", "slow", "stalled")
ALIKE = {("slow", "fast"), ("fast", "slow"), ("slow", "stalled"), ("stalled", "slow")}
WANTED = {"console": TO_CONSOLE, "-r": TO_FILE, "-t": TO_BOTH}


class Case(NamedTuple):
    stdout: str
    log: bool
    bounded: bool
    filtered: bool
    reader: str  # of the console
    disk: str  # of the log

    def __str__(self) -> str:
        flags = [name for name in ("log", "bounded", "filtered") if getattr(self, name)]
        return "-".join([self.stdout.strip("-"), *flags, self.reader, self.disk])


def cases() -> Iterator[Case]:
    asked = itertools.product(WANTED, (False, True), (False, True), (False, True))
    for stdout, log, bounded, filtered in asked:
        readers = READERS if stdout == "-t" else READERS[:1]
        disks = READERS if log else READERS[:1]
        for reader, disk in itertools.product(readers, disks):
            if (stdout != "console" or log) and (reader, disk) not in ALIKE:
                yield Case(stdout, log, bounded and stdout != "console", filtered, reader, disk)


def printed(rank: int, *, filtered: bool) -> list[bytes]:
    """What a rank prints. The log leaves out some of it."""
    lines = [(b"rank %d line %07d " % (rank, n)).ljust(WIDTH - 1, b".") for n in range(LINES)]
    if filtered:
        lines[1000:1002] = [(b"19%d nvidia%d" % (n, rank)).ljust(WIDTH - 1) for n in range(2)]
    return lines


class SlowLog(LogFile):
    """A log on a disk that answers once it may."""

    def __init__(self, path: str, may_answer: threading.Event) -> None:
        super().__init__(path)
        self._may_answer = may_answer

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        assert self._may_answer.wait(DEADLINE_S)
        super().write(pieces)


class FullLog(LogFile):
    """A log on a disk that is full."""

    def flush(self) -> None:
        self.error = "full" if self.blocked else ""


@contextlib.contextmanager
def standard_output(fd: int) -> Iterator[None]:
    """Have a descriptor as standard output."""
    saved = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def amount(pattern: str, problems: list[str]) -> int:
    return sum(int(number) for text in problems for number in re.findall(pattern, text))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, too, only the reader decides what is dropped."""
    monkeypatch.setattr(console, "STALL_S", DEADLINE_S)
    monkeypatch.setattr(round_output, "_SHOW_S", DEADLINE_S)
    monkeypatch.setattr(follower_module, "_PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr(follower_module, "_RETRY_S", 0.01)


@pytest.mark.parametrize("case", sorted(set(cases())), ids=str)
def test_every_line_is_in_its_file_or_shown_or_counted(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.bounded:
        following.skip_unless_parts_can_be_freed(tmp_path)
    if case.reader == "stalled":
        monkeypatch.setattr(console, "STALL_S", 0.05)
    settings = config(tmp_path, case)
    outputs = [
        destinations.for_round_log(settings, 0, n, destinations.own_layout(settings, 0, n))
        for n in range(len(RANKS))
    ]
    pipe = Pipe(reads=case.reader == "fast")
    disk_answers = threading.Event()
    logs: dict[str, Callable[[str], LogFile]] = {
        "fast": LogFile,
        "slow": lambda path: SlowLog(path, disk_answers),
        "stalled": FullLog,
    }
    with standard_output(pipe.write_fd):
        output = RoundOutput(settings, 0, RANKS, 4, outputs, lambda path, _: logs[case.disk](path))
        assert output.start() == []
        paths = [tmp_path / where.stdout.path for where in outputs]
        for rank, path in zip(RANKS, paths, strict=True):
            append_in_pieces(path, printed(rank, filtered=case.filtered))
        if case.bounded:
            wait_for(lambda: all(path.stat().st_blocks * 512 <= 2 * MOST for path in paths))
        if case.reader == "slow":
            pipe.read()
        disk_answers.set()
        output.request_close()
        problems = output.close()
    shown = pipe.close()

    for rank, path in zip(RANKS, paths, strict=True):
        lines = printed(rank, filtered=case.filtered)
        if not outputs[0].stdout.temporary or case.disk == "stalled":
            check_file(path, lines)
        else:
            assert not path.exists()
    everything = [line for rank in RANKS for line in printed(rank, filtered=case.filtered)]
    kept = [line for line in everything if b"nvidia" not in line]
    about_console = [text for text in problems if "console" in text]
    about_log = [text for text in problems if "train_cycle0" in text]
    place = str(tmp_path / "attempt_0")
    assert all(place in text for text in about_console + about_log if " lines " in text)
    if case.stdout == "-t":
        complete = case.reader == "fast" and not case.bounded
        check(shown, everything, about_console, complete=complete)
    else:
        assert shown == b""
    if case.log:
        complete = case.disk != "stalled" and not case.bounded
        logged = content_of(tmp_path / "train_cycle0.log")
        check(logged, kept, about_log, complete=complete, left_out=len(everything) - len(kept))


def config(tmp_path: Path, case: Case) -> RunConfig:
    changes: dict[str, Any] = {"applog_prefix": str(tmp_path / "train")} if case.log else {}
    return RunConfig(
        run_id="r", node="n", nproc_per_node=len(RANKS), max_restarts=0, kind="script", target="t",
        args=[], cwd="/", run_dir="/run", log_dir=str(tmp_path), stderr=[TO_CONSOLE] * len(RANKS),
        stdout=[WANTED[case.stdout]] * len(RANKS), log_max_bytes=MOST if case.bounded else 0,
        **changes,
    )  # fmt: skip


def append_in_pieces(path: Path, lines: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    for begin in range(0, len(data), 65_432):  # also in the middle of a line
        following.append(path, data[begin : begin + 65_432])


def check_file(path: Path, lines: list[bytes]) -> None:
    got = path.read_bytes().split(b"\n")
    assert got.pop() == b""
    gone = 0
    if got[0].startswith(b"[undaunted]"):
        gone = amount(r"(\d+) bytes", [got.pop(0).decode()]) // WIDTH
    assert got == lines[gone:]


def check(
    content: bytes, lines: list[bytes], problems: list[str], *, complete: bool, left_out: int = 0
) -> None:
    assert b"\0" not in content
    got = [text for line in content.splitlines() for text in re.findall(rb"[0-9\]]: ?(.*)", line)]
    assert len(got) == len(set(got))
    assert set(got) <= set(lines), "whole lines, each once"
    for rank in RANKS:
        own = [line for line in got if b"rank %d " % rank in line]
        assert own == sorted(own), "in order"
    counted = amount(r"(\d+) lines", problems) + amount(r"(\d+) bytes", problems) // WIDTH
    missing = len(lines) - len(got)
    assert missing <= counted <= missing + left_out + NOTICES
    assert not complete or problems == []
