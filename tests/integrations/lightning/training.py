"""A small training with Lightning: batches depend on their number alone, and are gone on with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if "pytorch_lightning" in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS, BATCHES = 4, 8


class Batches:
    """A loader that says where it is in an epoch, and goes on from there.

    Lightning does not load its state at the end of an epoch, and tells samplers which one begins.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.next, self.epoch = rank, size, 0, 0
        self.sampler = self

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.next %= self.size
        while self.next < self.size:
            self.next += 1
            seed = 10000 * self.rank + 100 * self.epoch + self.next
            yield torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Model(pl.LightningModule):
    def __init__(self, batches: int = BATCHES, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.batches = batches
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Linear(width, 1))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layers(batch).square().mean()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.layers(batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]

    def train_dataloader(self) -> Batches:
        return Batches(self.global_rank, self.batches)

    def val_dataloader(self) -> list[torch.Tensor]:
        return [torch.ones(2, 16)]


def trainer_of(callbacks: list[Any], **options: Any) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(
            isinstance(each, pl.callbacks.Checkpoint) for each in callbacks
        ),
    }
    defaults = {"accelerator": "cpu", "devices": 1, "max_epochs": EPOCHS}
    return pl.Trainer(callbacks=callbacks, **{**quiet, **defaults, **options})


def parameters_of(model: Model) -> list[float]:
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()
