"""Saves as often as the disk allows: all ranks save the same steps, however they drift apart."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from tests.e2e.launcher import launched
from undaunted.agreement.agreement import Agreement
from undaunted.checkpointing import Checkpointer
from undaunted.checkpointing.errors import AGREED, SaveError
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

LONG_S = 60.0
SAVES = 12


class Rank:
    """A rank that trains in one thread and decides in another, as a Checkpointer does."""

    def __init__(self, rank: int, agreement: Agreement, together: threading.Barrier) -> None:
        self.saved: list[int] = []
        self._pace = Pace(agreement, LONG_S)
        self._random = random.Random(rank)
        self._together = together
        self._begun: queue.Queue[int] = queue.Queue()

    def run(self) -> None:
        with ThreadPoolExecutor(1) as saving:
            decisions = saving.submit(self._decide)
            try:
                self._train()
            finally:
                self._begun.put(0)
            decisions.result(LONG_S)

    def _train(self) -> None:
        for step in itertools.count():
            self._work(self._random.choice((0, 1, 20)))
            by_hand = step % 97 == 96
            if self._pace.due(step) or by_hand:
                self._together.wait(LONG_S)  # as in a save, in which the ranks agree
                self.saved.append(step)
                if len(self.saved) == SAVES:
                    return
                self._pace.begun(step, len(self.saved))
                self._begun.put(len(self.saved))

    def _decide(self) -> None:
        while number := self._begun.get(timeout=LONG_S):
            self._work(self._random.choice((0, 1, 500)))
            assert self._pace.decide(number)

    @staticmethod
    def _work(units: int) -> None:
        sum(range(1000 * units))


@pytest.mark.parametrize("seed", range(4))
def test_all_ranks_save_the_same_steps(seed: int) -> None:
    together, store = threading.Barrier(3), dist.HashStore()
    ranks = [
        Rank(
            10 * seed + rank,
            Agreement(store, rank, 3, "s", kinds=AGREED, lane="background"),
            together,
        )
        for rank in range(3)
    ]
    with ThreadPoolExecutor(3) as training:
        for done in [training.submit(rank.run) for rank in ranks]:
            done.result(LONG_S)
    assert len(ranks[0].saved) == SAVES
    assert ranks[0].saved == ranks[1].saved == ranks[2].saved


def test_the_pause_lets_training_have_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    pace = Pace(Agreement(dist.HashStore(), 0, 1, "s"), LONG_S)
    monkeypatch.setattr("time.monotonic", lambda: 110.0)
    assert pace.pause_s(began=100.0, stall_s=0.01) == 0.0
    assert pace.pause_s(began=100.0, stall_s=0.5) == pytest.approx(10.0)
    pace.cpu_s = 0.25 * len(os.sched_getaffinity(0))
    assert pace.pause_s(began=100.0, stall_s=0.25) == pytest.approx(10.0)
    pace.cpu_s = 0.0
    assert pace.pause_s(began=100.0, stall_s=0.1) == 0.0


@pytest.fixture
def open_one(tmp_path: Path) -> Callable[..., Checkpointer]:
    return lambda **settings: Checkpointer(
        tmp_path / "all", keep=None, process_group="alone", timeout=LONG_S, **settings
    )


def test_of_one_rank(open_one: Callable[..., Checkpointer]) -> None:
    state: dict[str, Any] = {"x": torch.zeros(1000)}
    saved = []
    with open_one(every="continuous") as checkpoints:
        assert checkpoints.load(state) is None
        for step in itertools.count(5):
            if checkpoints.due(step):
                checkpoints.save(step, state)
                saved.append(step)
                if len(saved) == 5:
                    break
        assert saved[0] == 5
        assert sorted(set(saved)) == saved
        assert checkpoints.load(state, step=saved[1]) == saved[1]
        assert checkpoints.due(saved[1] + 1)  # it went back: what follows is new


def test_what_was_loaded_is_not_saved_again(open_one: Callable[..., Checkpointer]) -> None:
    state: dict[str, Any] = {"x": torch.zeros(1000)}
    with open_one(every="continuous") as checkpoints:
        checkpoints.save(7, state)
    with open_one(every="continuous") as checkpoints:
        start = checkpoints.load(state)
        assert start == 7
        assert [checkpoints.due(step) for step in (start, start + 1)] == [False, True]


def test_a_failed_save_is_raised_once_when_the_next_one_is_due(
    open_one: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    state: dict[str, Any] = {"x": torch.zeros(1000)}
    with open_one(every="continuous") as checkpoints:
        with monkeypatch.context() as full:
            full.setattr(FolderStorage, "write_small", _no_space)
            assert checkpoints.due(0)
            checkpoints.save(0, state)
            steps = itertools.count(1)
            with pytest.raises(SaveError, match="No space left"):
                any(map(checkpoints.due, steps))
        step = next(steps)
        assert checkpoints.due(step)
        checkpoints.save(step, state)
        checkpoints.wait()
        assert checkpoints.latest() == step


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/full")


@pytest.mark.parametrize("on_failure", ["warn", "raise"])
def test_a_state_that_cannot_be_saved_is_not_tried_at_each_step(
    open_one: Callable[..., Checkpointer], on_failure: str
) -> None:
    state: dict[str, Any] = {"x": torch.zeros(10), "odd": object()}
    tried: list[int] = []
    with open_one(every="continuous", on_failure=on_failure) as checkpoints:
        for step in range(1000):
            if step == 900:
                state["odd"] = 1
            if checkpoints.due(step):
                tried.append(step)
                with contextlib.suppress(SaveError):
                    checkpoints.save(step, state)
                    if step >= 900:
                        break
        assert len([step for step in tried if step < 900]) < 20
        assert tried[-1] < 1000
        checkpoints.wait()
        assert checkpoints.latest() == tried[-1]


def test_every_so_many_steps(open_one: Callable[..., Checkpointer]) -> None:
    with open_one(every=3) as checkpoints:
        assert [step for step in range(8) if checkpoints.due(step)] == [0, 3, 6]
    with open_one() as checkpoints, pytest.raises(ValueError, match="every="):
        checkpoints.due(1)
    for wrong in (0, -1, True, 1.5, "often"):
        with pytest.raises(ValueError, match=f"every={wrong!r}"):
            open_one(every=wrong)


PROGRAM = """
import json, os, signal, sys
import torch, torch.distributed as dist
from undaunted.checkpointing import Checkpointer

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, again = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
model = torch.nn.Linear(300, 300)
state = {"model": model, "step": 0}
with Checkpointer(sys.argv[1], every="continuous") as checkpoints:
    begun = checkpoints.load(state) or 0
    saved, step = [], begun
    while len(saved) < 6:
        step += 1
        loss = model(torch.randn(16, 300)).sum()
        loss.backward()
        for one in model.parameters():
            dist.all_reduce(one.grad)
        state["step"] = step
        if checkpoints.due(step):
            checkpoints.save(step, state)
            saved.append(step)
        if rank == 1 and not again and len(saved) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
print("SAID", json.dumps({"again": again, "begun": begun, "saved": saved}), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.e2e
def test_a_job_that_crashes_goes_on_from_the_last_save(tmp_path: Path) -> None:
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    with launched(tmp_path, PROGRAM, *options, args=("all",)) as launcher:
        assert launcher.finish(100) == 0, launcher.text
    said = [json.loads(line.partition("SAID ")[2]) for line in launcher.seen if "SAID " in line]
    assert len(said) == 2, launcher.text
    assert said[0]["saved"] == said[1]["saved"]
    assert said[0]["begun"] > 0
    assert said[0]["begun"] < said[0]["saved"][0]
