"""Checkpoints in the background, with a real trainer."""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from tests.integrations.lightning.training import BATCHES, Model, parameters_of, trainer_of
from undaunted.integrations.lightning import (
    BackgroundCheckpointIO,
    UndauntedCallback,
    last_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
LIMIT_S = 60.0


class Held(TorchCheckpointIO):
    """Writes when it is told to, and notes what it did."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.done: list[str] = []
        self.error: Exception | None = None

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.begun.set()
        assert self.go.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        super().save_checkpoint(checkpoint, path, storage_options)
        self.done.append(f"save {path}")

    def remove_checkpoint(self, path: Any) -> None:
        super().remove_checkpoint(path)
        self.done.append(f"remove {path}")


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_checkpoint_exists_when_it_is_whole(tmp_path: Path, held: Held) -> None:
    background = BackgroundCheckpointIO(held)
    weights = torch.zeros(3)
    background.save_checkpoint({"weights": [weights]}, tmp_path / "a.ckpt")
    assert held.begun.wait(LIMIT_S)
    weights += 1  # training goes on
    assert last_checkpoint(tmp_path) is None
    held.go.set()
    found = background.load_checkpoint(tmp_path / "a.ckpt")
    assert found["weights"][0].tolist() == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_all_of_a_checkpoint_is_fixed_and_tied_weights_are_written_once(tmp_path: Path) -> None:
    tied, seen = torch.zeros(100_000), collections.deque([1])
    held = Held()
    background = BackgroundCheckpointIO(held)
    background.save_checkpoint({"a": tied, "b": {"c": tied}, "seen": seen}, tmp_path / "a.ckpt")
    seen.append(2)  # training goes on
    held.go.set()
    background.teardown()
    assert (tmp_path / "a.ckpt").stat().st_size < 1.5 * tied.nbytes
    found = torch.load(tmp_path / "a.ckpt", weights_only=False)
    assert found["a"].data_ptr() == found["b"]["c"].data_ptr()
    assert list(found["seen"]) == [1]


def test_an_old_one_goes_when_the_new_one_is_whole(tmp_path: Path, held: Held) -> None:
    background = BackgroundCheckpointIO(held)
    old, new = str(tmp_path / "old.ckpt"), str(tmp_path / "new.ckpt")
    held.go.set()
    background.save_checkpoint({"lr_schedulers": []}, old)
    background.teardown()
    held.go.clear()
    background.save_checkpoint({"lr_schedulers": []}, new)
    background.remove_checkpoint(old)
    assert last_checkpoint(tmp_path) == old
    held.go.set()
    background.teardown()
    assert held.done == [f"save {old}.part", f"save {new}.part", f"remove {old}"]
    assert last_checkpoint(tmp_path) == new


def test_an_old_one_stays_when_the_new_one_failed(tmp_path: Path, held: Held) -> None:
    background = BackgroundCheckpointIO(held)
    held.go.set()
    background.save_checkpoint({}, tmp_path / "old.ckpt")
    background.teardown()
    held.error = OSError("the disk is full")
    background.save_checkpoint({}, tmp_path / "new.ckpt")
    background.remove_checkpoint(tmp_path / "old.ckpt")
    with pytest.raises(OSError, match="the disk is full"):
        background.save_checkpoint({}, tmp_path / "newer.ckpt")
    held.error = None
    background.save_checkpoint({}, tmp_path / "newer.ckpt")
    background.teardown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newer.ckpt", "old.ckpt"]


def test_waiting_has_a_deadline(tmp_path: Path, held: Held) -> None:
    background = BackgroundCheckpointIO(held, timeout=0.01)
    background.save_checkpoint({}, tmp_path / "a.ckpt")
    with pytest.raises(TimeoutError, match=r"a\.ckpt"):
        background.teardown()
    held.go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("writes"):
            thread.join(LIMIT_S)


def test_a_timeout_is_more_than_nothing() -> None:
    with pytest.raises(ValueError, match="timeout"):
        BackgroundCheckpointIO(timeout=0)


def test_training_goes_on_while_it_is_written(tmp_path: Path, held: Held) -> None:
    class LetsGo(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                assert held.begun.wait(LIMIT_S)  # the checkpoint of step 3
                assert last_checkpoint(tmp_path) is None
                held.go.set()

    def fit(folder: Path, *callbacks: Any, **options: Any) -> list[float]:
        model = Model()
        saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=3)
        trainer = trainer_of([UndauntedCallback(), *callbacks, saving], max_epochs=2, **options)
        trainer.fit(model, ckpt_path=last_checkpoint(folder))
        return parameters_of(model)

    expected = fit(tmp_path / "undisturbed")
    assert fit(tmp_path, LetsGo(), plugins=[BackgroundCheckpointIO(held)]) == expected
    whole = last_checkpoint(tmp_path)
    assert whole is not None
    assert torch.load(whole, weights_only=False)["global_step"] == 2 * BATCHES // 3 * 3
    assert fit(tmp_path) == expected
