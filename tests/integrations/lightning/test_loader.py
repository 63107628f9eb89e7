"""A Loader in a trainer of Lightning: the same samples and the same result after a restart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

from undaunted.data import Batches, DataChangedError, Loader

pytest.importorskip("lightning")
import lightning.pytorch as pl

from undaunted.integrations.lightning import LoaderCallback, UndauntedCallback, last_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(200),
]


class Samples(Dataset[Any]):
    """Rows with noise."""

    def __len__(self) -> int:
        return 44

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((8,), index / 44) + 0.1 * torch.randn(8)


class Model(pl.LightningModule):
    """Dropout, a step of eight samples; notes which ones it sees."""

    def __init__(self, micro_batch: int = 2, stop: int = -1, **settings: Any) -> None:
        super().__init__()
        self.settings = {"global_batch": 8, "seed": 1, **settings}
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())
        self.micro_batch, self.stop = micro_batch, stop
        self.seen: dict[int, list[int]] = {}

    def train_dataloader(self) -> Batches:
        return Batches(Loader(Samples(), micro_batch=self.micro_batch, **self.settings))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        indices, rows = batch
        self.seen.setdefault(self.trainer.global_step, []).extend(indices.tolist())
        if self.trainer.global_step == self.stop:
            raise InterruptionError
        return (self.layers(rows) - rows).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class InterruptionError(Exception):
    """Of training, as by a kill."""


def fit(folder: Path, model: Model, *, every: int = 3, **options: Any) -> list[Any]:
    saving = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        callbacks=[LoaderCallback(), saving, UndauntedCallback()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(model, ckpt_path=last_checkpoint(folder))
    assert trainer.global_step == 15
    return [each.tolist() for each in model.parameters()]


@pytest.mark.parametrize("stop", [4, 6, 8, 11])
def test_it_goes_on_at_the_same_sample_to_the_same_bit(tmp_path: Path, stop: int) -> None:
    """An epoch has five steps, and a save comes every three: in epochs, and at the end of one."""
    whole = Model()
    expected = fit(tmp_path / "whole", whole)
    with pytest.raises(InterruptionError):
        fit(tmp_path / "job", Model(stop=stop), every=5 if stop == 6 else 3)
    rest = Model()
    assert fit(tmp_path / "job", rest) == expected
    assert rest.seen == {step: whole.seen[step] for step in rest.seen}
    assert max(rest.seen) == 14
    assert min(rest.seen) == (5 if stop == 6 else stop // 3 * 3)


@pytest.mark.parametrize("stop", [4, 6, 8])
def test_micro_batches_of_another_size_are_the_same_samples(tmp_path: Path, stop: int) -> None:
    """As with other ranks: another number of them is accumulated, from within an epoch on."""
    whole = Model()
    fit(tmp_path / "whole", whole)
    with pytest.raises(InterruptionError):
        fit(tmp_path / "job", Model(stop=stop), every=5 if stop == 6 else 3)
    rest = Model(micro_batch=4)
    fit(tmp_path / "job", rest)
    assert rest.seen == {step: whole.seen[step] for step in rest.seen}
    assert sorted(rest.seen) == list(range(5 if stop == 6 else stop // 3 * 3, 15))


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="accumulate_grad_batches=3"):
        fit(tmp_path, Model(), accumulate_grad_batches=3)
    with pytest.raises(ValueError, match="limit_train_batches"):
        fit(tmp_path, Model(), limit_train_batches=8)


@pytest.mark.parametrize("every", [3, 5])
def test_other_steps_and_other_data_are_refused_when_training_goes_on(
    tmp_path: Path, every: int
) -> None:
    """In an epoch, where Lightning loads the Loader's state, and at its end, where it does not."""
    with pytest.raises(InterruptionError):
        fit(tmp_path, Model(stop=6), every=every)
    with pytest.raises(ValueError, match="global_batch"):
        fit(tmp_path, Model(global_batch=4), every=every)
    with pytest.raises(DataChangedError, match="seed"):
        fit(tmp_path, Model(seed=2), every=every)


def test_a_trainer_that_it_does_not_fit_is_refused_as_training_begins() -> None:
    trainer = SimpleNamespace(num_training_batches=1, train_dataloader=None)
    with pytest.raises(RuntimeError, match=r"accumulate_grad_batches is not there"):
        LoaderCallback().on_train_start(trainer, None)
