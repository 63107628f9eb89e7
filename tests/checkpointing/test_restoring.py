"""What earlier rounds have left in memory: it is given up when it, or something newer, is safe."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch

from tests.checkpointing.keeping.test_shelf import with_shelf
from undaunted.checkpointing import Checkpointer, OccupiedError
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.keeping.client import ShelfClient
from undaunted.checkpointing.memory.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.checkpointing.keeping.shelf import Shelf

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


def leave_a_copy(folder: Path, step: int) -> None:
    """As a process that is killed before anything of it is written."""
    killed = Checkpointer(folder, timeout=60)
    copy_only(killed, step, torch.arange(8.0))
    killed.abort()


def copy_only(checkpoints: Checkpointer, step: int, values: torch.Tensor) -> None:
    saves = checkpoints._saves
    saves.submit = lambda snapshot: snapshot.lease.release()
    checkpoints.save(step, {"x": values})
    del saves.submit


def kept_steps(shelf: Shelf) -> list[int]:
    """Of the copies that the agent has."""
    steps = []
    for fd in shelf.arenas().values():
        arena = Arena.open(os.dup(fd))
        description = arena.description()
        assert description is not None
        steps.append(description.step)
        arena.close()
    return steps


def no_space(*_: object) -> str:
    raise OSError(errno.ENOSPC, "No space left on device", "/full")


def test_a_copy_is_given_up_when_it_is_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(shelf: Shelf) -> None:
        leave_a_copy(tmp_path, 7)
        state = {"x": torch.zeros(8)}
        with Checkpointer(tmp_path, timeout=60) as checkpoints:
            assert checkpoints.load(state) == 7
            assert shelf.arenas() == {}
        assert state["x"].tolist() == list(range(8))

    with_shelf(monkeypatch, use)


def test_a_copy_that_cannot_be_written_is_there_for_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(shelf: Shelf) -> None:
        leave_a_copy(tmp_path, 7)
        with monkeypatch.context() as full:
            full.setattr(FolderStorage, "write", no_space)
            failed = Checkpointer(tmp_path, timeout=60)
            assert failed.load({"x": torch.zeros(8)}) is None
        assert kept_steps(shelf) == [7]
        copy_only(failed, 1, torch.zeros(8))  # begins anew, and does not come to storage
        failed.abort()
        assert kept_steps(shelf) == [7]
        with Checkpointer(tmp_path, timeout=60) as checkpoints:
            assert checkpoints.load({"x": torch.zeros(8)}) == 7
            assert shelf.arenas() == {}

    with_shelf(monkeypatch, use)


ANOTHER_JOB = """
import sys
import torch
from undaunted.checkpointing import Checkpointer
with Checkpointer(sys.argv[1], timeout=60) as checkpoints:
    checkpoints.save(20, {"x": torch.ones(8)})
    checkpoints.wait()
    print("saved", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_job(folder: Path) -> Iterator[None]:
    """Another job that has saved step 20 there, and may save again."""
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER_JOB, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"saved\n"
        yield
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize("tried", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_copy_never_takes_the_place_of_another_jobs_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    def use(shelf: Shelf) -> None:
        state = {"x": torch.zeros(8)}
        with another_job(tmp_path):
            if tried:
                refused = Checkpointer(tmp_path, timeout=60)
                refused.save(25, state)
                with pytest.raises(OccupiedError, match=r"another job .* its own directory"):
                    refused.wait()
                refused.abort()
            else:
                leave_a_copy(tmp_path, 25)
                with Checkpointer(tmp_path, timeout=60) as next_round:
                    assert next_round.load(state) == 20
        with Checkpointer(tmp_path, timeout=60) as later:
            assert later.load(state) == 20
            assert shelf.arenas() == {}

    with_shelf(monkeypatch, use)


@pytest.mark.parametrize("failing", ["write", "commit"])
def test_a_copy_that_could_not_be_saved_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def use(_: Shelf) -> None:
        leave_a_copy(tmp_path, 7)
        monkeypatch.setattr(FolderStorage, failing, no_space)
        with Checkpointer(tmp_path, timeout=60) as checkpoints:
            assert checkpoints.load({"x": torch.zeros(8)}) is None
            assert not list(tmp_path.glob(".step-*"))

    with_shelf(monkeypatch, use)


def test_a_checkpoint_of_this_round_supersedes_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(shelf: Shelf) -> None:
        leave_a_copy(tmp_path, 7)
        with Checkpointer(tmp_path, timeout=60) as checkpoints:
            with monkeypatch.context() as full:
                full.setattr(FolderStorage, "write", no_space)
                checkpoints.load({"x": torch.zeros(8)})
            checkpoints.save(1, {"x": torch.zeros(8)})
            checkpoints.wait()
            assert kept_steps(shelf) == [7]
            checkpoints.save(2, {"x": torch.zeros(8)})
            assert kept_steps(shelf) == [2]

    with_shelf(monkeypatch, use)


def test_a_copy_that_the_agent_did_not_take_is_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And what is there stays until something newer is."""

    def broken(*_: object) -> None:
        raise TimeoutError("timed out")

    def use(shelf: Shelf) -> None:
        leave_a_copy(tmp_path, 7)
        with Checkpointer(tmp_path, timeout=60) as checkpoints:
            with monkeypatch.context() as full:
                full.setattr(FolderStorage, "write", no_space)
                checkpoints.load({"x": torch.zeros(8)})
            checkpoints.save(1, {"x": torch.zeros(8)})
            checkpoints.wait()
            with monkeypatch.context() as slow:
                slow.setattr(ShelfClient, "keep", broken)
                checkpoints.save(2, {"x": torch.zeros(8)})
                checkpoints.save(3, {"x": torch.zeros(8)})
            assert kept_steps(shelf) == [7]
            checkpoints.save(4, {"x": torch.zeros(8)})
            assert kept_steps(shelf) == [4]

    with_shelf(monkeypatch, use)
    assert caplog.text.count("not kept over a restart") == 1


def test_copies_that_the_agent_did_not_hand_out_are_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: ShelfClient) -> list[object]:
        raise TimeoutError("timed out")

    def use(shelf: Shelf) -> None:
        leave_a_copy(tmp_path, 7)
        with Checkpointer(tmp_path, timeout=60) as checkpoints:
            with monkeypatch.context() as slow:
                slow.setattr(ShelfClient, "left", broken)
                assert checkpoints.load({"x": torch.zeros(8)}) is None
            copy_only(checkpoints, 1, torch.zeros(8))
            assert kept_steps(shelf) == [7]

    with_shelf(monkeypatch, use)


def test_a_copy_of_after_a_return_to_an_older_step_is_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(shelf: Shelf) -> None:
        killed = Checkpointer(tmp_path, timeout=60)
        for step in (100, 200, 300):
            killed.save(step, {"x": torch.full((8,), float(step))})
        killed.load({"x": torch.zeros(8)}, step=200)
        copy_only(killed, 250, torch.full((8,), 250.0))
        killed.abort()
        state = {"x": torch.zeros(8)}
        with Checkpointer(tmp_path, timeout=60) as checkpoints:
            assert checkpoints.load(state) == 250
            assert state["x"].tolist() == [250.0] * 8
            assert shelf.arenas() == {}

    with_shelf(monkeypatch, use)


@pytest.mark.parametrize("written", [True, False])
def test_a_step_that_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """The copy of the second save is not taken for the checkpoint that the first one has made."""

    def use(shelf: Shelf) -> None:
        killed = Checkpointer(tmp_path, timeout=60)
        for step in (10, 20):
            killed.save(step, {"x": torch.full((8,), float(step))})
        killed.wait()
        copy_only(killed, 20, torch.full((8,), 21.0))
        killed.abort()
        state = {"x": torch.zeros(8)}
        with monkeypatch.context() as full:
            if not written:
                full.setattr(FolderStorage, "write", no_space)
            with Checkpointer(tmp_path, timeout=60) as checkpoints:
                assert checkpoints.load(state) == 20
        assert state["x"].tolist() == [21.0 if written else 20.0] * 8

    with_shelf(monkeypatch, use)
