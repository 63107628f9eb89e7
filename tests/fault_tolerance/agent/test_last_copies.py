"""What the agent says and records of copies that are written at the end of a job."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict

from undaunted.base import process
from undaunted.base.memory import create_memfd
from undaunted.checkpointing.keeping.shelf import Key
from undaunted.fault_tolerance.agent import last_copies
from undaunted.fault_tolerance.agent.processes import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.journal.events import LastCopy

BEGIN = """import os, signal, sys, time; pipe = int(sys.argv[2])
os.write(pipe, b'{"type":"LastBegun","step":7,"bytes":12000000000}\\n')
"""
DONE = """os.write(pipe, b'{"type":"LastEnded"}\\n')"""
FAILED = """os.write(pipe, b'{"type":"LastEnded","problem":"No space left on device"}\\n')"""


class Shelf:
    def __init__(self, *fds: int) -> None:
        self._fds = fds

    def arenas(self) -> dict[Key, int]:
        return {Key(rank, "/place", 0): fd for rank, fd in enumerate(self._fds)}


class Kept:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.recorded: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def record(self, event: LastCopy) -> None:
        self.recorded.append(asdict(event))


@pytest.fixture
def fd() -> Iterator[int]:
    found = create_memfd("test", 4096)
    yield found
    os.close(found)


def written(
    monkeypatch: pytest.MonkeyPatch, code: str, *fds: int, bytes_per_s: float = 200e6
) -> Kept:
    """What is told when this is the program that writes."""
    kept = Kept()
    others = process.children()  # what earlier tests of this process keep
    workers = Workers(lambda _: None, lambda: None)
    monkeypatch.setattr(
        process, "module_command", lambda _, *words: [sys.executable, "-S", "-c", code, *words]
    )
    write = last_copies.write_last_copies(
        Shelf(*fds),  # type: ignore[arg-type]
        dict(os.environ),
        bytes_per_s,
        workers.code_of,
        3,
        kept,  # type: ignore[arg-type]
        kept.say,
    )
    asyncio.run(write)
    for pid in process.children() - others:
        os.waitpid(pid, 0)
    return kept


def test_a_copy_that_is_written(monkeypatch: pytest.MonkeyPatch, fd: int) -> None:
    kept = written(monkeypatch, BEGIN + DONE, fd)
    (line,) = kept.said
    for part in ("step 7", "12 GB", "/place", "1 min 00 s"):
        assert part in line
    (event,) = kept.recorded
    assert (event["step"], event["bytes"]) == (7, 12_000_000_000)
    assert (event["outcome"], event["why"], event["allowed_s"]) == ("written", "", 60.0)


def test_large_copies_get_more_time(monkeypatch: pytest.MonkeyPatch, fd: int) -> None:
    kept = written(monkeypatch, BEGIN + DONE, fd, bytes_per_s=100e6)
    assert kept.recorded[0]["allowed_s"] == 120.0
    assert "2 min 00 s" in kept.said[0]


def test_nothing_is_said_where_a_checkpoint_is_as_new(
    monkeypatch: pytest.MonkeyPatch, fd: int
) -> None:
    kept = written(monkeypatch, BEGIN.splitlines()[0] + "\n" + DONE, fd)
    assert (kept.said, kept.recorded) == ([], [])


def test_nothing_is_started_without_copies_or_with_no_time(
    monkeypatch: pytest.MonkeyPatch, fd: int
) -> None:
    assert written(monkeypatch, BEGIN + DONE).said == []
    assert written(monkeypatch, BEGIN + DONE, fd, bytes_per_s=0.0).said == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (BEGIN + FAILED, "No space left on device"),
        (BEGIN + "sys.exit(1)", "exited with code 1"),
        (BEGIN + "os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        (BEGIN + "os.write(pipe, b'nonsense\\n')", "malformed"),
    ],
    ids=["told", "exit", "killed", "nonsense"],
)
def test_a_copy_that_is_not_written(
    monkeypatch: pytest.MonkeyPatch, fd: int, code: str, why: str
) -> None:
    kept = written(monkeypatch, code, fd)
    (event,) = kept.recorded
    assert event["outcome"] == "failed"
    assert why in event["why"]


def test_a_program_that_cannot_begin(monkeypatch: pytest.MonkeyPatch, fd: int) -> None:
    kept = written(monkeypatch, "import sys; sys.exit('no module of ours')", fd)
    assert "exited with code 1" in kept.recorded[0]["why"]
    assert kept.recorded[0]["step"] == -1


def test_one_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, fd: int) -> None:
    monkeypatch.setattr(last_copies, "LEAST_S", 3.0)  # it also has to begin in that time
    kept = written(monkeypatch, BEGIN + "time.sleep(60)", fd, bytes_per_s=1e15)
    assert kept.recorded[0]["outcome"] == "given_up"
    assert kept.recorded[0]["allowed_s"] == 3.0
