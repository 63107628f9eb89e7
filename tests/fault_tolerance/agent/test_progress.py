"""How far a job has come: by its file, by the pages, and in the journal."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.coordinator.policy.messages import Iterations
from undaunted.fault_tolerance.agent import progress as module
from undaunted.fault_tolerance.agent.progress import (
    PageProgress,
    ProgressFile,
    ProgressNotes,
    last_step_ns,
)
from undaunted.progress.snapshot import PageSnapshot

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> Iterations:
    return asyncio.run(ProgressFile(str(path)).read())


@pytest.mark.parametrize("content", ["40", "40\n", " 40 \r\n"])
def test_one_whole_number(tmp_path: Path, content: str) -> None:
    path = tmp_path / "latest.txt"
    path.write_text(content)
    assert read(path) == Iterations(None, 40)


@pytest.mark.parametrize("content", [b"", b"release", b"4 5", b"-1", b"1.5", b"9" * 99, b"\xff\0"])
def test_anything_else_is_unknown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "latest.txt"
    path.write_bytes(content)
    seen = read(path)
    assert seen.last is None
    assert "latest.txt: it does not hold one whole number" in seen.problem


def test_a_file_that_is_absent_or_none(tmp_path: Path) -> None:
    assert "No such file" in read(tmp_path / "absent").problem
    assert "not a file" in read(tmp_path).problem
    os.mkfifo(tmp_path / "pipe")
    assert "not a file" in read(tmp_path / "pipe").problem


def test_what_the_job_starts_from_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "latest.txt"
    path.write_text("40")

    async def job() -> Iterations:
        file = ProgressFile(str(path))
        await file.begin()
        path.write_text("60")
        return await file.read()

    assert asyncio.run(job()) == Iterations(40, 60)


def test_without_a_file_the_pages_count(tmp_path: Path) -> None:
    async def job(name: str) -> Iterations:
        file = ProgressFile(name, str(tmp_path))
        await file.begin()
        return await file.reached(Iterations(1, 2))

    assert asyncio.run(job("")) == Iterations(1, 2)
    (tmp_path / "latest.txt").write_text("9")
    assert asyncio.run(job("latest.txt")) == Iterations(9, 9)


def test_a_disk_that_hangs_costs_its_time_and_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest.txt"
    path.write_text("40")
    answers = threading.Event()
    real = os.open

    def hang(*args: object) -> int:
        answers.wait(30)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module.os, "open", hang)

    async def job() -> list[Iterations]:
        file = ProgressFile(str(path), limit_s=0.01)
        seen = [await file.read(), await file.read()]
        answers.set()
        assert file._reader is not None
        await asyncio.to_thread(file._reader.join, 30)
        return [*seen, await ProgressFile(str(path)).read()]

    slow, blocked, recovered = asyncio.run(job())
    assert "within 0.01 s" in slow.problem
    assert "still waits for the disk" in blocked.problem
    assert recovered.last == 40


def test_the_highest_iteration_of_all_pages() -> None:
    pages = [
        PageSnapshot(first_iteration=40, iteration=50),
        PageSnapshot(first_iteration=40, iteration=51),
        PageSnapshot(),
        PageSnapshot(problem="torn"),
    ]
    assert PageProgress().look(pages) == Iterations(40, 51)
    assert PageProgress().look([PageSnapshot(), PageSnapshot()]) == Iterations()


def test_when_the_highest_iteration_was_begun() -> None:
    pages = [
        PageSnapshot(iteration=50, iteration_ns=9),
        PageSnapshot(iteration=51, iteration_ns=7),
        PageSnapshot(),
    ]
    assert last_step_ns(pages) == 7
    assert last_step_ns([PageSnapshot()]) == 0


def test_pages_that_tell_nothing_of_use() -> None:
    assert (
        "local rank 1 is unreadable (torn)"
        in PageProgress().look([PageSnapshot(), PageSnapshot(problem="torn")]).problem
    )
    back = PageProgress().look([PageSnapshot(first_iteration=500, iteration=10)])
    assert back.last is None
    assert "went back from iteration 500 to 10" in back.problem


def test_iterations_that_begin_anew_within_a_round_are_noticed_from_look_to_look() -> None:
    def page(iteration: int, pid: int = 1) -> PageSnapshot:
        return PageSnapshot(pid=pid, first_iteration=0, iteration=iteration)

    progress = PageProgress()
    assert progress.look([page(900)]) == Iterations(0, 900)
    assert "went back from iteration 900 to 10" in progress.look([page(10)]).problem
    assert progress.look([page(950)]).last is None  # also later in this round
    assert progress.look([PageSnapshot()]) == Iterations()  # the next one
    assert progress.look([page(5, pid=2)]) == Iterations(0, 5)
    assert progress.look([page(3, pid=3)]) == Iterations(0, 3)


class Told:
    """Pages and scribe in one."""

    ranks = 2

    def __init__(self) -> None:
        self.iteration = 4
        self.notes: list[tuple[Iterations, int]] = []
        self.twice = asyncio.Event()

    def snapshot(self, index: int) -> PageSnapshot:
        iteration = self.iteration + index
        return PageSnapshot(
            pid=index, first_iteration=4, iteration=iteration, iteration_ns=iteration * 10
        )

    def round_progress(self, seen: Iterations, last_step_ns: int) -> None:
        self.notes.append((seen, last_step_ns))
        if len(self.notes) > 1:
            self.twice.set()


def notes(told: Told) -> ProgressNotes:
    this: Any = told
    return ProgressNotes(this, this)


@on_loop
async def test_at_the_beginning_and_at_the_end_of_a_round() -> None:
    told = Told()
    progress = notes(told)
    progress.begin()
    told.iteration = 8
    assert progress.end() == Iterations(4, 9)
    assert told.notes == [(Iterations(4, 5), 50), (Iterations(4, 9), 90)]


@on_loop
async def test_meanwhile_again_and_again_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_S", 0.001)
    told = Told()
    progress = notes(told)
    progress.begin()
    await asyncio.wait_for(told.twice.wait(), 30)
    progress.close()
    assert progress._timer is None


@on_loop
async def test_of_a_short_round_more_often_and_of_a_long_one_every_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda delay_s, _: delays.append(delay_s))
    progress = notes(Told())
    progress.begin()
    for _ in range(7):
        progress._again()
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    progress.begin()  # another round
    assert delays[-1] == 1
