"""A Loader in a loop of Accelerate: its state is saved and loaded, and nothing is skipped twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

from undaunted.data import Loader

pytest.importorskip("accelerate")
from accelerate import Accelerator

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]


class Samples(Dataset[Any]):
    """Rows with noise."""

    def __len__(self) -> int:
        return 44

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((8,), index / 44) + 0.1 * torch.randn(8)


class Training:
    """A model with dropout, as a script prepares it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.accelerator = Accelerator(cpu=True)
        self.loader = Loader(Samples(), global_batch=8, micro_batch=2, seed=1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())
        optimizer = torch.optim.AdamW(model.parameters())
        self.model, self.optimizer, loader = self.accelerator.prepare(model, optimizer, self.loader)
        assert loader is self.loader, "it is not wrapped"
        self.accelerator.register_for_checkpointing(self.loader)
        self.seen: list[list[int]] = []

    def step(self) -> None:
        for indices, rows in self.loader.step():
            self.seen.append(indices.tolist())
            with self.loader.accumulate(self.model):
                loss = (self.model(rows) - rows).square().mean()
                self.accelerator.backward(loss * self.loader.scale)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parameters(self) -> list[list[Any]]:
        return [each.tolist() for each in self.model.parameters()]


@pytest.mark.parametrize("saved_after", [5, 7])
def test_it_goes_on_at_the_end_of_an_epoch_and_in_the_next_one(
    tmp_path: Path, saved_after: int
) -> None:
    """As not in huggingface/accelerate 4071 and 4233: epochs have five steps here."""
    whole = Training()
    for _ in range(16):
        whole.step()

    before = Training()
    for _ in range(saved_after):
        before.step()
    before.accelerator.save_state(str(tmp_path))
    before.step()  # lost

    after = Training()
    after.accelerator.load_state(str(tmp_path))
    for _ in range(16 - saved_after):
        after.step()
    assert before.seen[: 4 * saved_after] + after.seen == whole.seen
    assert after.parameters() == whole.parameters()
